from accel_checkpoint.manifest import FileEntry
from accel_checkpoint.ranks.reports import RankReport, Verdict, verdict_on


def test_reports_and_verdicts_survive_the_way():
    entry = FileEntry("a", 1, "crc32:00000000")
    report = RankReport("/a", 0, 1, files=[entry], error="reason")
    assert RankReport.decode(report.encode()) == report
    verdict = Verdict("reason", is_saved=True, has_parts=True, files=[entry])
    assert Verdict.decode(verdict.encode()) == verdict


def test_all_reasons_are_told():
    reports = [
        RankReport("/a", 0, 0),
        RankReport("/a", 0, 0, error="OSError: full"),
        RankReport("/a", 0, 0, error="KeyError: 'x'"),
    ]
    assert "rank 1: OSError: full; rank 2: KeyError: 'x'" in verdict_on(reports, target="/a").error


def test_what_fails_after_the_commit_does_not_deny_it():
    reports = [RankReport("a", 0, 0, error="KeyboardInterrupt", is_saved=True), RankReport("a", 0, 0)]
    error = verdict_on(reports, target="a").error
    assert "`a` is saved, but a later step failed (rank 0: Keyboard" in error


def test_machines_may_have_different_folders_ranks_of_one_may_not():
    assert verdict_on([RankReport("/a", 0, 0), RankReport("/b", 1, 1)], target="/a").error is None
    error = verdict_on([RankReport("/a", 0, 0), RankReport("/b", 0, 0)], target="/a").error
    assert "`/a` and `/b`" in error


def test_files_are_told_only_where_machines_have_parts():
    entry = FileEntry("a", 1, "crc32:00000000")
    shared = [RankReport("/a", 0, 0, files=[entry]), RankReport("/a", 0, 1)]
    assert verdict_on(shared, target="/a") == Verdict()
    apart = [RankReport("/a", 0, 0, files=[entry]), RankReport("/a", 1, 1)]
    assert verdict_on(apart, target="/a") == Verdict(has_parts=True, files=[entry])
