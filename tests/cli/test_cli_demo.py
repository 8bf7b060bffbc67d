"""A short demo, judged by the API's own count."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request

from cli.command_line import CommandLine


def test_the_demo_shows_both_ways(intervalq: CommandLine) -> None:
    ran = intervalq("demo", "--jobs", "45", "--shards", "3", code=None)
    counts = re.findall(r"The API says: (\d+) calls, (\d+) rejected", ran.stdout)
    (calls, paced), (as_many, alone) = counts
    assert calls == as_many == "45"
    assert ran.code == (paced != "0"), "a machine that is too busy is told apart from one that isn't"
    output = " ".join(ran.stdout.split())
    assert f"and {alone} of 45 were rejected. With one queue, {paced} of 45 were rejected." in output
    assert "$ intervalq run countries.txt --name demo-" in ran.stdout
    assert "jobs  45" in ran.stderr
    assert all(len(line) <= 80 for line in ran.stdout.splitlines() if not line.startswith(("$", " ")))
    assert intervalq("status").stdout.startswith("no queues in "), "it leaves nothing behind"


def test_the_demo_can_be_interrupted(intervalq: CommandLine) -> None:
    process = intervalq.start("demo", "--jobs", "249")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("$ intervalq run"):
            break
    process.send_signal(signal.SIGINT)
    _, output = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in output
    assert intervalq("status").stdout.startswith("no queues in ")


def test_the_api_counts_calls(intervalq: CommandLine) -> None:
    process = intervalq.start("demo-api", "--limit", "2", "--window", "1h", "--json")
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    codes = []
    for _ in range(3):
        try:
            with urllib.request.urlopen(f"{url}/countries/SE") as answer:
                codes.append(answer.status)
        except urllib.error.HTTPError as error:
            codes.append(error.code)
            error.close()
    process.send_signal(signal.SIGINT)
    report = json.loads(process.stdout.read())
    assert process.wait() == 0
    assert codes == [200, 200, 429]
    assert (report["calls"], report["rejected"]) == (3, 1)


def test_the_api_reports_to_people(intervalq: CommandLine) -> None:
    process = intervalq.start("demo-api")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == "0 calls\n"


def test_a_port_that_is_taken(intervalq: CommandLine) -> None:
    process = intervalq.start("demo-api")
    assert process.stdout is not None
    port = process.stdout.readline().strip().rpartition(":")[2]
    ran = intervalq("demo-api", "--port", port, code=1)
    assert ran.stderr.startswith(f"intervalq: port {port}: ")
    assert "is not a duration: give window as" in intervalq("demo-api", "--window", "x", code=2).stderr
