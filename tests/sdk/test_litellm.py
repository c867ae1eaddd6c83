"""litellm, a client of both APIs that many tools are built on."""

import os
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

from cluster import Cluster


def setUpModule():
    global cluster
    litellm.suppress_debug_info = True
    cluster = Cluster()


def tearDownModule():
    cluster.stop()


def ask(provider, base, **more):
    messages = [{"role": "user", "content": "hi"}]
    return litellm.completion(
        model=f"{provider}/m", api_base=base, api_key="any", messages=messages, max_tokens=8, num_retries=0, **more
    )


class Both(unittest.TestCase):
    def bases(self):
        return [("openai", cluster.http + "/v1"), ("anthropic", cluster.http)]

    def test_whole(self):
        for provider, base in self.bases():
            with self.subTest(provider):
                answer = ask(provider, base)
                self.assertTrue(28 <= len(answer.choices[0].message.content) <= 32)
                self.assertEqual(answer.usage.completion_tokens, 8)

    def test_stream(self):
        for provider, base in self.bases():
            with self.subTest(provider):
                text = "".join(chunk.choices[0].delta.content or "" for chunk in ask(provider, base, stream=True))
                self.assertGreaterEqual(len(text), 28)

    def test_an_unknown_model_raises(self):
        for provider, base in self.bases():
            with self.subTest(provider), self.assertRaises(litellm.exceptions.NotFoundError):
                litellm.completion(
                    model=f"{provider}/nobody", api_base=base, api_key="any", num_retries=0,
                    messages=[{"role": "user", "content": "hi"}], max_tokens=8,
                )


if __name__ == "__main__":
    unittest.main()
