import zlib

import xxhash

from accel_checkpoint.files import Digest, digest_of


def test_the_digest_of_a_file_is_that_of_its_parts(tmp_path):
    content = bytes(range(256)) * 140_000  # more than two blocks
    (tmp_path / "a").write_bytes(content)
    digest = Digest()
    for start in range(0, len(content), 999_999):
        digest.update(memoryview(content)[start : start + 999_999])
    assert digest_of(tmp_path / "a") == str(digest)
    blocks = [content[start : start + 2**24] for start in range(0, len(content), 2**24)]
    expected = xxhash.xxh3_128(b"".join(xxhash.xxh3_128(block).digest() for block in blocks)).hexdigest()
    assert str(digest) == f"xxh3-16m:{expected}"


def test_files_of_earlier_releases_are_compared_by_their_algorithm(tmp_path):
    content = bytes(range(256)) * 40_000
    (tmp_path / "a").write_bytes(content)
    assert digest_of(tmp_path / "a", like="crc32:00000000") == f"crc32:{zlib.crc32(content):08x}"


def test_no_bytes_have_a_digest(tmp_path):
    (tmp_path / "a").touch()
    assert digest_of(tmp_path / "a") == str(Digest())


def test_every_flipped_bit_changes_it(tmp_path):
    digests = set()
    for bit in range(64):
        (tmp_path / "a").write_bytes((1 << bit).to_bytes(8, "big"))
        digests.add(digest_of(tmp_path / "a"))
    assert len(digests) == 64
