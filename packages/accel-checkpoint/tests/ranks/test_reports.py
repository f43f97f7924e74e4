from accel_checkpoint.manifest import FileEntry
from accel_checkpoint.ranks.reports import RankReport, Verdict, verdict_on


def test_reports_and_verdicts_survive_encoding():
    entry = FileEntry("a", 1, "crc32:00000000")
    report = RankReport("/a", 0, 1, files=[entry], error="reason")
    assert RankReport.decode(report.encode()) == report
    verdict = Verdict("reason", is_saved=True, has_parts=True, files=[entry])
    assert Verdict.decode(verdict.encode()) == verdict


def test_the_verdict_names_every_reason():
    reports = [
        RankReport("/a", 0, 0),
        RankReport("/a", 0, 0, error="OSError: full"),
        RankReport("/a", 0, 0, error="KeyError: 'x'"),
    ]
    assert "rank 1: OSError: full; rank 2: KeyError: 'x'" in verdict_on(reports, target="/a").error


def test_an_error_after_the_commit_says_that_the_checkpoint_is_saved():
    reports = [RankReport("a", 0, 0, error="KeyboardInterrupt", is_saved=True), RankReport("a", 0, 0)]
    error = verdict_on(reports, target="a").error
    assert "`a` is saved, but a later step failed (rank 0: Keyboard" in error


def test_folders_may_differ_between_nodes_but_not_within_one():
    assert verdict_on([RankReport("/a", 0, 0), RankReport("/b", 1, 1)], target="/a").error is None
    error = verdict_on([RankReport("/a", 0, 0), RankReport("/b", 0, 0)], target="/a").error
    assert "`/a` and `/b`" in error


def test_the_verdict_lists_files_only_if_there_are_parts():
    entry = FileEntry("a", 1, "crc32:00000000")
    shared = [RankReport("/a", 0, 0, files=[entry]), RankReport("/a", 0, 1)]
    assert verdict_on(shared, target="/a") == Verdict()
    apart = [RankReport("/a", 0, 0, files=[entry]), RankReport("/a", 1, 1)]
    assert verdict_on(apart, target="/a") == Verdict(has_parts=True, files=[entry])
