"""The official OpenAI client library."""

import asyncio
import io
import json
import unittest

import openai

from cluster import Cluster, eventually

TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


def setUpModule():
    global cluster, client
    cluster = Cluster()
    client = openai.OpenAI(base_url=cluster.http + "/v1", api_key="any", max_retries=0)


def tearDownModule():
    client.close()
    cluster.stop()


def user(words):
    return [{"role": "user", "content": words}]


class Chat(unittest.TestCase):
    def test_whole(self):
        answer = client.chat.completions.create(model="m", messages=user("hi"), max_tokens=8)
        self.assertEqual(len(answer.choices[0].message.content), 32)
        self.assertEqual((answer.choices[0].finish_reason, answer.usage.completion_tokens), ("length", 8))

    def test_headers(self):
        raw = client.chat.completions.with_raw_response.create(model="m", messages=user("hi"), max_tokens=2)
        self.assertEqual(raw.headers["x-rankpin-worker"], "plain")
        self.assertEqual(len(raw.request_id), 36)

    def test_stream(self):
        stream = client.chat.completions.create(model="m", messages=user("hi"), max_tokens=8, stream=True)
        text, usage = "", None
        for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
        self.assertEqual((len(text), usage.completion_tokens), (32, 8))

    def test_a_conversation_stays_on_its_rank(self):
        messages, ranks, cached = user("a question that is long enough to fill some blocks " * 8), set(), []
        for turn in range(4):
            raw = client.chat.completions.with_raw_response.create(model="m", messages=messages, max_tokens=16)
            ranks.add(raw.headers["x-rankpin-dp-rank"])
            answer = raw.parse()
            cached.append(answer.usage.prompt_tokens_details.cached_tokens)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            messages.append({"role": "user", "content": f"and then {turn}?"})
        self.assertEqual(len(ranks), 1)
        self.assertTrue(cached[0] == 0 and all(tokens > 0 for tokens in cached[1:]), cached)

    def test_tools(self):
        tools = [{"type": "function", "function": TOOL}]
        messages = user("What is the weather in Paris?")
        first = client.chat.completions.create(model="scripted", messages=messages, tools=tools).choices[0]
        call = first.message.tool_calls[0]
        self.assertEqual((first.finish_reason, call.function.name), ("tool_calls", "get_weather"))
        self.assertEqual(json.loads(call.function.arguments), {"city": "Paris"})
        messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        second = client.chat.completions.create(model="scripted", messages=messages, tools=tools)
        self.assertEqual(second.choices[0].message.content, "It is sunny in Paris.")

    def test_tools_streamed(self):
        tools = [{"type": "function", "function": TOOL}]
        with client.chat.completions.stream(model="scripted", messages=user("Weather?"), tools=tools) as stream:
            call = stream.get_final_completion().choices[0].message.tool_calls[0]
        self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"city": "Paris"}))

    def test_a_hundred_streams_at_once(self):
        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=cluster.http + "/v1", api_key="any", max_retries=0) as client:

                async def one(n):
                    text = ""
                    stream = await client.chat.completions.create(
                        model="m", messages=user(f"question {n}"), max_tokens=32, stream=True
                    )
                    async for chunk in stream:
                        text += "".join(choice.delta.content or "" for choice in chunk.choices)
                    return text

                return await asyncio.gather(*(one(n) for n in range(100)))

        texts = asyncio.run(all_of_them())
        self.assertEqual({len(text) for text in texts}, {128})
        self.assertGreater(len(set(texts)), 90)

    def test_a_stream_that_is_closed_is_cancelled(self):
        line = 'rankpin_gateway_requests_total{api="chat",outcome="disconnected"}'
        before = cluster.metric(line)
        stream = client.chat.completions.create(model="slow", messages=user("hi"), stream=True)
        next(iter(stream))
        stream.close()
        eventually("the request is cancelled", lambda: cluster.metric(line) == before + 1)
        eventually("nothing is under way", lambda: cluster.metric("rankpin_gateway_in_flight") == 0)


class OtherApis(unittest.TestCase):
    def test_completions(self):
        answer = client.completions.create(model="m", prompt="hi", max_tokens=4)
        self.assertEqual(len(answer.choices[0].text), 16)
        stream = client.completions.create(model="m", prompt="hi", max_tokens=4, stream=True)
        self.assertEqual(len("".join(chunk.choices[0].text for chunk in stream)), 16)

    def test_responses(self):
        answer = client.responses.create(model="m", input="hi", max_output_tokens=8)
        self.assertEqual((len(answer.output_text), answer.status), (32, "incomplete"))
        again = client.responses.with_raw_response.create(
            model="m", input="go on", previous_response_id=answer.id, max_output_tokens=8
        )
        self.assertEqual(again.headers["x-rankpin-decision"].split(",")[0], "pinned")

    def test_responses_streamed(self):
        kinds, text = [], ""
        for event in client.responses.create(model="m", input="hi", stream=True):
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
        self.assertEqual((kinds[0], kinds[-1], len(text)), ("response.created", "response.completed", 256))

    def test_responses_call_tools(self):
        tools = [{"type": "function", **TOOL}]
        answer = client.responses.create(model="scripted", input="Weather?", tools=tools)
        call = answer.output[0]
        self.assertEqual((call.type, call.name, json.loads(call.arguments)), ("function_call", "get_weather", {"city": "Paris"}))
        items = [{"role": "user", "content": "Weather?"}, call.model_dump(), {
            "type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
        with client.responses.stream(model="scripted", input=items, tools=tools) as stream:
            self.assertEqual(stream.get_final_response().output_text, "It is sunny in Paris.")

    def test_embeddings(self):
        both = client.embeddings.create(model="m", input=["a", "b"])
        plain = client.embeddings.create(model="m", input="a", encoding_format="float")
        self.assertEqual(both.data[0].embedding, plain.data[0].embedding)
        self.assertEqual((len(both.data), len(both.data[1].embedding)), (2, 8))

    def test_models(self):
        self.assertEqual({model.id for model in client.models.list()}, {"m", "scripted", "slow"})
        self.assertEqual(client.models.retrieve("m").id, "m")


class Errors(unittest.TestCase):
    def test_an_unknown_model(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            client.chat.completions.create(model="nobody", messages=user("hi"))
        self.assertEqual(raised.exception.code, "unknown_model")
        self.assertTrue(raised.exception.request_id)

    def test_a_bad_request(self):
        with self.assertRaises(openai.BadRequestError):
            client.chat.completions.create(model="", messages=user("hi"))

    def test_an_unknown_path(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            client.images.generate(model="m", prompt="x")
        self.assertEqual(raised.exception.code, "unknown_path")


class Batches(unittest.TestCase):
    def test_a_batch(self):
        def line(n):
            body = {"model": "m", "messages": user(f"question {n}"), "max_tokens": 4}
            return {"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}

        text = "".join(json.dumps(line(n)) + "\n" for n in range(50)).encode()
        file = client.files.create(file=("in.jsonl", io.BytesIO(text)), purpose="batch")
        self.assertEqual((file.bytes, file.filename), (len(text), "in.jsonl"))
        self.assertEqual(client.files.content(file.id).read(), text)
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
        )
        done = eventually("the batch is done", lambda: self.done(batch.id))
        self.assertEqual((done.request_counts.completed, done.request_counts.total), (50, 50))
        lines = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
        self.assertEqual([line["custom_id"] for line in lines], [f"r{n}" for n in range(50)])
        self.assertTrue(all(len(line["response"]["body"]["choices"][0]["message"]["content"]) == 16 for line in lines))
        self.assertIn(batch.id, [listed.id for listed in client.batches.list()])
        self.assertTrue(client.files.delete(file.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            client.files.retrieve(file.id)

    @staticmethod
    def done(batch):
        batch = client.batches.retrieve(batch)
        assert batch.status not in ("failed", "expired"), batch
        return batch if batch.status == "completed" else None


if __name__ == "__main__":
    unittest.main()
