from tools.bench.profile import PARTS, profile_table


def test_the_table_shows_what_each_part_costs_more_and_the_sum():
    plain = dict.fromkeys(PARTS, 10.0)
    lines = profile_table({"plain": plain, "ours": plain | {"backward": 11.5}}).splitlines()
    assert [line.split() for line in lines if "backward" in line] == [["backward", "10.0", "11.5", "+1.5"]]
    assert lines[-1].split() == ["sum", "80.0", "81.5", "+1.5"]
