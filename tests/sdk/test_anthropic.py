"""The official Anthropic client library."""

import asyncio
import unittest

import anthropic

from cluster import Cluster, eventually

TOOL = {"name": "get_weather", "description": "weather", "input_schema": {"type": "object", "properties": {}}}


def setUpModule():
    global cluster, client
    cluster = Cluster()
    client = anthropic.Anthropic(base_url=cluster.http, api_key="any", max_retries=0)


def tearDownModule():
    client.close()
    cluster.stop()


def user(words):
    return [{"role": "user", "content": words}]


class Messages(unittest.TestCase):
    def test_whole(self):
        answer = client.messages.create(model="m", system="s", messages=user("hi"), max_tokens=8)
        self.assertEqual((len(answer.content[0].text), answer.stop_reason), (32, "max_tokens"))
        self.assertEqual(answer.usage.output_tokens, 8)
        # Its body looks like a chat completion's: only the path tells.
        self.assertEqual(client.messages.create(model="m", messages=user("hi"), max_tokens=8).type, "message")

    def test_stream(self):
        with client.messages.stream(model="m", messages=user("hi"), max_tokens=8) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual((len(text), final.stop_reason, final.usage.output_tokens), (32, "max_tokens", 8))

    def test_a_conversation_stays_on_its_rank(self):
        messages, ranks, cached = user("a question that is long enough to fill some blocks " * 8), set(), []
        for turn in range(4):
            raw = client.messages.with_raw_response.create(model="m", system="s", messages=messages, max_tokens=16)
            ranks.add(raw.headers["x-rankpin-dp-rank"])
            answer = raw.parse()
            cached.append(answer.usage.cache_read_input_tokens)
            messages.append({"role": "assistant", "content": answer.content})
            messages.append({"role": "user", "content": f"and then {turn}?"})
        self.assertEqual(len(ranks), 1)
        self.assertTrue(cached[0] == 0 and all(tokens > 0 for tokens in cached[1:]), cached)

    def test_tools(self):
        messages = user("What is the weather in Paris?")
        first = client.messages.create(model="scripted", messages=messages, tools=[TOOL], max_tokens=64)
        use = first.content[0]
        self.assertEqual((first.stop_reason, use.name, use.input), ("tool_use", "get_weather", {"city": "Paris"}))
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": use.id, "content": "sunny"}]}]
        second = client.messages.create(model="scripted", messages=messages, tools=[TOOL], max_tokens=64)
        self.assertEqual(second.content[0].text, "It is sunny in Paris.")

    def test_tools_streamed(self):
        with client.messages.stream(model="scripted", messages=user("Weather?"), tools=[TOOL], max_tokens=64) as stream:
            use = stream.get_final_message().content[0]
        self.assertEqual((use.name, use.input), ("get_weather", {"city": "Paris"}))

    def test_a_hundred_streams_at_once(self):
        async def all_of_them():
            async with anthropic.AsyncAnthropic(base_url=cluster.http, api_key="any", max_retries=0) as client:

                async def one(n):
                    async with client.messages.stream(
                        model="m", messages=user(f"question {n}"), max_tokens=32
                    ) as stream:
                        return await stream.get_final_text()

                return await asyncio.gather(*(one(n) for n in range(100)))

        self.assertEqual({len(text) for text in asyncio.run(all_of_them())}, {128})

    def test_a_stream_that_is_closed_is_cancelled(self):
        line = 'rankpin_gateway_requests_total{api="messages",outcome="disconnected"}'
        before = cluster.metric(line)
        with client.messages.stream(model="slow", messages=user("hi"), max_tokens=3600) as stream:
            next(iter(stream.text_stream))
        eventually("the request is cancelled", lambda: cluster.metric(line) == before + 1)

    def test_tokens_are_counted(self):
        self.assertGreater(client.messages.count_tokens(model="m", messages=user("hi")).input_tokens, 0)

    def test_models(self):
        self.assertEqual({model.id for model in client.models.list()}, {"m", "scripted", "slow"})
        self.assertEqual(client.models.retrieve("m").type, "model")


class Errors(unittest.TestCase):
    def test_an_unknown_model(self):
        with self.assertRaises(anthropic.NotFoundError) as raised:
            client.messages.create(model="nobody", messages=user("hi"), max_tokens=8)
        self.assertEqual(raised.exception.body["error"]["type"], "not_found_error")
        self.assertTrue(raised.exception.request_id)

    def test_a_bad_request(self):
        with self.assertRaises(anthropic.BadRequestError):
            client.messages.create(model="", messages=user("hi"), max_tokens=8)


if __name__ == "__main__":
    unittest.main()
