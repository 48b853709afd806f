"""The profiles' flows over the kernel's sockets: what is expected of them happens there too, to the byte."""

from __future__ import annotations

import unittest

from tests.player import play
from tests.running import WithProfiles
from tests.test_profiles import EXPECTED


class OverTheKernel(WithProfiles):
    def test_every_profile(self) -> None:
        for name, expected in EXPECTED.items():
            form = self.compiled(f"{name}.py")
            for index, (to_server, to_client) in enumerate(expected):
                with self.subTest(profile=name, template=index):
                    client, server = play(form, index)
                    self.assertIsNone(client.error)
                    self.assertIsNone(server.error)
                    self.assertEqual((len(client.sent), len(server.sent)), (to_server, to_client))
                    self.assertEqual(server.received, client.sent)
                    self.assertEqual(client.received, server.sent)
                    if name == "video" and index == 0:
                        self.assertEqual(client.nested, [1, 2, 2])

    def test_payload_of_a_capture(self) -> None:
        client, server = play(self.compiled("captures.py"), 1)
        self.assertEqual(client.sent, b"x" * 517 + b"z" * 83)
        self.assertEqual(server.sent, b"y" * 4000 + b"!" * 1400)


if __name__ == "__main__":
    unittest.main()
