"""The suite runs in two processes of pytest-xdist: what must not run beside another of its kind is in one of them."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("spark")
def test_tests_that_share_something_run_in_one_process(request):
    """Those with Spark's session, those that start a Spark, those in Airflow's environment, those with a browser, and
    those of a module that makes something for all of them.
    """
    if not getattr(request.config.option, "loadgroup", False):
        assert not request.node.nodeid.endswith("@spark"), "one process has no groups"
        return
    assert request.node.nodeid.endswith("@spark")
    homes: dict[pytest.FixtureDef, set[str]] = {}
    for item in request.session.items:
        groups = {mark.args[0] for mark in item.iter_markers("xdist_group")}
        assert groups or not item.get_closest_marker("spark"), item.nodeid
        assert not groups or item.nodeid.endswith(f"@{'_'.join(groups)}"), item.nodeid
        assert len(groups) < 2, item.nodeid
        if isinstance(item, pytest.Function):
            for definition in (found[-1] for found in item._fixtureinfo.name2fixturedefs.values()):
                if definition.scope == "module" or definition.argname == "browser":
                    homes.setdefault(definition, set()).update(groups or {item.nodeid})
    # Spark's session comes before: what a module makes for tests with it and without may be there twice.
    assert [(definition.argname, found) for definition, found in homes.items() if len(found - {"spark"}) > 1] == []
