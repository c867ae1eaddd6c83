"""A frontend for rankpin in plain nats-py: sends a conversation's turns, prints the answers as they stream in.

    pip install nats-py && python frontend.py --model my-model --session chat-1 "Hello" "And again"

Every turn of one session goes to the same worker and rank. Without --session rankpin knows the conversation by its
text. The contract is docs/protocol.md; its sections are named below.
"""
import argparse, asyncio, json, sys, uuid

import nats

IDLE = 30  # seconds of silence after which a request is given up: a killed router can't tell


class Refused(Exception):
    """The answer is an error: its status, code word and message."""


async def ask(nc, args, messages):
    """Sends a turn (section 3) and yields its reply stream (section 6.1): placement first, then each event."""
    inbox, request_id = nc.new_inbox(), uuid.uuid4().hex
    replies = await nc.subscribe(inbox)
    headers = {"Rankpin-Request-Id": request_id}
    if args.session:
        headers["Rankpin-Session-Id"] = args.session
    body = json.dumps({"model": args.model, "messages": messages, "stream": True}).encode()
    model = "".join(c if c.isascii() and (c.isalnum() or c in "_-/:+@=") else "".join(f"%{b:02X}" for b in c.encode())
                    for c in args.model)
    await nc.publish(f"{args.namespace}.request.{model}", body, reply=inbox, headers=headers)
    newest, ended = 0, False
    try:
        while True:
            msg = await replies.next_msg(timeout=IDLE)
            head = msg.headers or {}
            if head.get("Status") == "503":
                raise Refused("no router listens: is `rankpin router` running in this namespace?")
            attempt = int(head.get("Rankpin-Attempt", newest))
            if attempt < newest:
                continue  # of an attempt that was given up
            if newest and attempt > newest:
                raise Refused("the worker was replaced in the middle of its answer")
            newest, ended = attempt, head.get("Rankpin-Final") == "true"
            if "Nats-Service-Error-Code" in head:
                problem = json.loads(msg.data)["error"]
                raise Refused(f"{head['Nats-Service-Error-Code']} {head['Nats-Service-Error']}: {problem['message']}")
            if head.get("Rankpin-Seq") == "0":
                yield {"placement": [head.get(name) for name in ("Rankpin-Worker", "Rankpin-Dp-Rank", "Rankpin-Decision")]}
            if msg.data and msg.data != b"[DONE]":
                yield json.loads(msg.data)
            if ended:
                return
    finally:
        await replies.unsubscribe()
        if not ended:  # whoever stops listening says so, and the engine stops working
            await nc.publish(f"{args.namespace}.cancel.{request_id}", b"")


def text_of(event):
    """The words of an event, or of a whole answer that came in one message."""
    choice = (event.get("choices") or [{}])[0]
    return (choice.get("delta") or choice.get("message") or {}).get("content") or ""


async def main(args):
    nc = await nats.connect(args.nats_url, name="frontend")
    messages = []
    for words in args.words:
        messages.append({"role": "user", "content": words})
        answer = ""
        async for event in ask(nc, args, messages):
            if "placement" in event:
                worker, rank, why = event["placement"]
                print(f"[{worker} rank {rank}, {why}] ", end="", flush=True)
            answer += text_of(event)
            print(text_of(event), end="", flush=True)
        print()
        messages.append({"role": "assistant", "content": answer})
    await nc.drain()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="+", help="what the user says, turn by turn")
    for flag, default in (("nats-url", "nats://127.0.0.1:4222"), ("namespace", "rankpin"), ("model", "my-model"),
                          ("session", "")):
        parser.add_argument(f"--{flag}", default=default)
    try:
        asyncio.run(main(parser.parse_args()))
    except (Refused, nats.errors.Error) as problem:
        sys.exit(f"\nfrontend: {problem or type(problem).__name__}")
