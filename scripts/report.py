#!/usr/bin/env python3
"""Tables, in Markdown, from the raw runs that bench.py keeps.

    report.py FILE.jsonl...      one table per suite; medians, with the least and the most in brackets

Runs of several files are pooled by suite. A run that left wrong contents is shown but counts in no
median. The last column says what a tool did not keep, from its worst run.
"""

import collections
import json
import statistics
import sys


def spread(values, form="{:.1f}"):
    middle = form.format(statistics.median(values))
    if len(values) < 2:
        return middle
    return f"{middle} [{form.format(min(values))}–{form.format(max(values))}]"


def lost(runs):
    """What a tool did not keep, and what went wrong: words for the last column."""
    notes = {f"exit {run['exit']}" for run in runs if run["exit"]}
    worst = {}
    for run in runs:
        for what, entry in run["differences"].items():
            worst[what] = max(worst.get(what, 0), entry["count"])
    notes |= {f"{what} ({count})" for what, count in worst.items()}
    return ", ".join(sorted(notes)) or "nothing"


def table(runs_by_tool):
    valid = {
        tool: [run for run in runs if run["content_ok"] and not run["exit"]] or runs
        for tool, runs in runs_by_tool.items()
    }
    wall = {tool: statistics.median(r["wall_s"] for r in runs) for tool, runs in valid.items()}
    cold = any(run["disk"] for runs in valid.values() for run in runs)
    head = ["tool", "n", "wall s", "x haul", *(["head busy s", "seeks"] if cold else []),
            "CPU s", "peak MiB", "not kept"]
    yield "| " + " | ".join(head) + " |"
    yield "|---|" + "--:|" * (len(head) - 2) + "---|"
    for tool in sorted(wall, key=wall.get):
        runs = valid[tool]
        row = [tool, str(len(runs)), spread([run["wall_s"] for run in runs], "{:.2f}"),
               f"{wall[tool] / wall['haul']:.1f}" if "haul" in wall else "–"]
        if cold:
            row.append(spread([run["disk"]["busy_s"] for run in runs], "{:.2f}"))
            row.append(f"{statistics.median(run['disk']['seeks'] for run in runs):.0f}")
        row.append(f"{statistics.median(run['user_s'] + run['sys_s'] for run in runs):.2f}")
        row.append(f"{statistics.median(run['peak_rss_kib'] for run in runs) / 1024:.0f}")
        row.append(lost(runs_by_tool[tool]))
        yield "| " + " | ".join(row) + " |"


def paired(runs, others):
    """Ratios of what ran in the same round."""
    rounds = {(run["session"], run["turn"]): run["wall_s"] for run in others}
    ratios = [run["wall_s"] / rounds[key] for run in runs
              if (key := (run["session"], run["turn"])) in rounds]
    return spread(ratios, "{:.2f}") if ratios else "–"


def again(runs_by_tool):
    """Of a second copy: each rival beside haul (one with a cache beside the same without), the
    ratios being medians of those within a round, and what was seen besides."""
    valid = {
        tool: [run for run in runs if run["content_ok"] and not run["exit"]] or runs
        for tool, runs in runs_by_tool.items()
    }
    bases = [base for base in ("haul", "haul --verify=none", "haul --cached") if base in valid]
    cold = any(run["disk"] for runs in valid.values() for run in runs)
    seen = list(dict.fromkeys(key for runs in valid.values() for run in runs for key in run["seen"]))
    head = ["command", "n", "wall s", *(f"x {base}" for base in bases or ["without cache"]),
            *(["head busy s", "seeks"] if cold else []),
            "CPU s", *(key.replace("_", " ") for key in seen), "not kept"]
    yield "| " + " | ".join(head) + " |"
    yield "|---|" + "--:|" * (len(head) - 2) + "---|"
    for tool, runs in valid.items():
        row = [tool, str(len(runs)), spread([run["wall_s"] for run in runs], "{:.2f}")]
        for base in bases or [tool.replace(" --cache", " --no-cache")]:
            row.append("1" if base == tool else paired(runs, valid[base]))
        if cold:
            row.append(spread([run["disk"]["busy_s"] for run in runs], "{:.2f}"))
            row.append(f"{statistics.median(run['disk']['seeks'] for run in runs):.0f}")
        row.append(f"{statistics.median(run['user_s'] + run['sys_s'] for run in runs):.2f}")
        for key in seen:
            values = [run["seen"][key] for run in runs if run["seen"].get(key) is not None]
            numbers = values and all(isinstance(value, (int, float)) for value in values)
            # As they were seen, not half way between two of them.
            middle = statistics.median_low(values) if values else "–"
            row.append(f"{middle:,}" if numbers else str(middle))
        row.append(lost(runs_by_tool[tool]))
        yield "| " + " | ".join(row) + " |"


def main():
    sessions = collections.defaultdict(list)
    suites = collections.defaultdict(lambda: collections.defaultdict(list))
    for path in sys.argv[1:] or sys.exit(__doc__):
        with open(path) as file:
            for line in file:
                record = json.loads(line)
                if record["kind"] == "session":
                    sessions[record["suite"]].append(record)
                elif record["kind"] == "run":
                    record["session"] = len(sessions[record["suite"]])
                    suites[record["suite"]][record["tool"]].append(record)
    for suite, runs_by_tool in suites.items():
        print(f"### {suite}\n")
        for session in sessions[suite]:
            tree = session["tree"]
            print(f"{session['time']}, commit {session['commit'][:10]}"
                  f"{' and local changes' * session['dirty']}, kernel {session['kernel']}: "
                  f"{tree['files']:,} files, {tree['bytes'] / 1e6:,.0f} MB, seed {tree['seed']}.")
        print()
        second = any("seen" in run for runs in runs_by_tool.values() for run in runs)
        print("\n".join((again if second else table)(runs_by_tool)), end="\n\n")
    for sessions_of_suite in list(sessions.values())[:1]:
        print("Versions: " + "; ".join(filter(None, sessions_of_suite[-1]["versions"].values())))


if __name__ == "__main__":
    main()
