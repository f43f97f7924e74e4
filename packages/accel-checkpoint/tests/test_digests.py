import zlib

from accel_checkpoint.digests import Digest, digest_of


def test_the_digest_of_a_file_is_that_of_its_parts(tmp_path):
    content = bytes(range(256)) * 40_000
    (tmp_path / "a").write_bytes(content)
    digest = Digest()
    for start in range(0, len(content), 999_999):
        digest.update(memoryview(content)[start : start + 999_999])
    assert digest_of(tmp_path / "a") == str(digest) == f"crc32:{zlib.crc32(content):08x}"


def test_every_flipped_bit_changes_it(tmp_path):
    digests = set()
    for bit in range(64):
        (tmp_path / "a").write_bytes((1 << bit).to_bytes(8, "big"))
        digests.add(digest_of(tmp_path / "a"))
    assert len(digests) == 64
