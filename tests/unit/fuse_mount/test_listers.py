"""Programs that list directories and look at no file."""

from speedwell.fuse_mount.listers import KEPT_SECONDS, MOST_PROGRAMS, Listers

FIND, OTHER, NOBODY = 71, 72, 0


def test_who_does_not_look_up_what_was_left_out_wants_names_alone_until_it_looks_up_a_file() -> None:
    listers = Listers()
    assert listers.is_new(FIND, 0.0) and not listers.wants_names_alone(FIND, 0.0)
    listers.left_out(FIND, 0.0)
    assert listers.wants_names_alone(FIND, 1.0) and not listers.is_new(FIND, 1.0)
    listers.looked_up(OTHER)
    assert listers.wants_names_alone(FIND, 2.0)
    listers.looked_up(FIND)
    assert not listers.wants_names_alone(FIND, 3.0) and not listers.is_new(FIND, 3.0)


def test_what_is_known_of_a_program_is_of_no_other_and_ends_some_time_after_its_last_listing() -> None:
    listers = Listers()
    listers.left_out(FIND, 0.0)
    assert not listers.wants_names_alone(OTHER, 0.0) and listers.is_new(OTHER, 0.0)
    assert listers.wants_names_alone(FIND, KEPT_SECONDS - 1)
    assert listers.wants_names_alone(FIND, 2 * KEPT_SECONDS - 2)
    assert not listers.wants_names_alone(FIND, 3 * KEPT_SECONDS) and listers.is_new(FIND, 3 * KEPT_SECONDS)


def test_of_a_program_without_a_number_nothing_is_noted() -> None:
    assert not Listers().is_new(NOBODY, 0.0)


def test_programs_without_end_are_not_all_kept() -> None:
    listers = Listers()
    for program in range(1, 2 * MOST_PROGRAMS):
        listers.left_out(program, 0.0)
    known = [program for program in range(1, 2 * MOST_PROGRAMS) if not listers.is_new(program, 1.0)]
    assert 0 < len(known) <= MOST_PROGRAMS
    assert known[-1] == 2 * MOST_PROGRAMS - 1
