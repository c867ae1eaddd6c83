"""A worker for rankpin in plain nats-py: registers ranks, takes requests for them, answers and says so.

    pip install nats-py && python worker.py --worker py-1 --model my-model --dp-size 2

Put the call of your engine into `answer`. The contract is docs/protocol.md; its sections are named below."""
import argparse, asyncio, json, signal, time, uuid
from functools import partial

import nats
from nats.js.errors import KeyWrongLastSequenceError


async def answer(rank, body):
    """The engine: the events of a streaming answer, one after the other. Here each rank says who it is."""
    for text in (f"rank {rank} heard: ", str(body["messages"][-1]["content"])):
        yield {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}]}


async def serve(nc, rank, msg):
    """Sections 6 and 6.1: accepted, the reply stream, finished."""
    asked, seq, outcome = msg.headers, 0, "ok"

    def tell(event, payload=b""):
        return nc.publish(msg.reply, payload, headers={"Rankpin-Event": event})

    async def say(payload, more={}):
        nonlocal seq  # the first message says who answers, and why that one
        shown = ["Request-Id", "Attempt"] + (["Worker", "Dp-Rank", "Decision"] if seq == 0 else [])
        head = {"Rankpin-Seq": str(seq), **{n: asked[n] for s in shown if (n := f"Rankpin-{s}") in asked}, **more}
        seq += 1
        await nc.publish(asked["Rankpin-Reply-To"], payload, headers=head)

    try:
        await tell("accepted")
        async for event in answer(rank, json.loads(msg.data)):
            await say(json.dumps(event).encode())
        await say(b"", {"Rankpin-Final": "true"})
    except (asyncio.CancelledError, Exception) as problem:
        gone = isinstance(problem, asyncio.CancelledError)
        outcome, status, code = ("cancelled", "499", "cancelled") if gone else ("error", "500", "worker_error")
        body = {"error": {"message": str(problem) or code, "type": "rankpin_error", "code": code}}
        await say(json.dumps(body).encode(), {"Rankpin-Final": "true", "Nats-Service-Error-Code": status,
                                              "Nats-Service-Error": code, "Content-Type": "application/json"})
    await tell("finished", json.dumps({"outcome": outcome}).encode())


async def listen(nc, prefix, ranks):
    """A subject for each rank, one for requests that leave the rank to us, and one for cancels."""
    running = {}
    async def take(rank, msg):
        if int(msg.headers["Rankpin-Accept-By"]) + 2000 < time.time() * 1000: return  # too late; or a probe
        key = msg.headers["Rankpin-Request-Id"], msg.headers["Rankpin-Attempt"]
        running[key] = asyncio.create_task(serve(nc, rank, msg))
        running[key].add_done_callback(lambda _: running.pop(key, None))

    async def cancel(msg):
        named = [(msg.headers or {}).get(name) for name in ("Rankpin-Request-Id", "Rankpin-Attempt")]
        if task := running.get(tuple(named)):  # a router's probe names none, and wants no answer
            task.cancel()

    for rank in ranks:
        await nc.subscribe(f"{prefix}.rank.{rank}", cb=partial(take, rank))
    await nc.subscribe(f"{prefix}.any", queue="any", cb=partial(take, ranks[0]))
    await nc.subscribe(f"{prefix}.cancel", cb=cancel)
    await nc.flush()


async def main(args):
    nc = await nats.connect(args.nats_url, name=f"worker-{args.worker}")
    ranks = range(args.dp_start, args.dp_start + args.dp_size)
    await listen(nc, f"{args.namespace}.worker.{args.worker}", ranks)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # Section 7: put every 2 s by compare-and-set, so that a name has one owner; deleted at the end.
    me = {"v": 1, "worker": args.worker, "instance": str(uuid.uuid4()), "models": [args.model], "device": "cpu",
          "dp_start": args.dp_start, "dp_size": args.dp_size}
    bucket, revision, value = None, None, json.dumps(me).encode()
    while not stop.is_set():
        try:
            bucket = bucket or await nc.jetstream().key_value(f"{args.namespace}_workers")
            put = bucket.update(args.worker, value, revision) if revision else bucket.create(args.worker, value)
            revision = await put
        except KeyWrongLastSequenceError:
            raise SystemExit(f"worker {args.worker} runs elsewhere (or was killed less than 30 s ago)")
        except nats.errors.Error as problem:  # a router makes the bucket
            print(f"cannot register yet: {problem!r}", flush=True)
        await asyncio.wait([asyncio.create_task(stop.wait())], timeout=2)
    if revision:
        await bucket.delete(args.worker, last=revision)
    await nc.drain()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    defaults = {"nats-url": "nats://127.0.0.1:4222", "namespace": "rankpin", "worker": "py-1", "model": "my-model"}
    for flag, default in {**defaults, "dp-start": 0, "dp-size": 1}.items():
        parser.add_argument(f"--{flag}", default=default, type=type(default))
    asyncio.run(main(parser.parse_args()))
