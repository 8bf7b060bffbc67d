"""Deterministic simulation: the real handles, shards and rules under faults, in virtual time, from one seed.

    python -m intervalq.testing.simulation                      # 1,000 schedules of each mix
    python -m intervalq.testing.simulation --mix all --seed 7 --trace

A run is one seed of one mix. Two to five processes share a queue; each has its own handle, its own clock that
began anywhere and runs up to 200 ppm fast or slow, timers that are a little late, and its own way to the
store (LAN or WAN, longer one way than the other). Nothing of intervalq is modelled: the store is the rules
behind `DocumentStore`, its clock runs fast or slow too. The same seed gives the same trace, in any process.

Mixes
    calm; slow (messages that take up to 2.5 s longer); lossy (requests, answers, wake-ups get lost, the way
    is cut); stalls (a process doesn't run for up to 5 s, from any of its steps on); crashes (a process is
    no more, from any of its steps on, and releases nothing); clock (the store's is set forward and back);
    failover (to an older copy of the records, or to none; half of what is on its way is lost); late (timers
    are late by up to three intervals, requests arrive twice); taken (processors are taken away for 80 % of
    the time, a turn being up to two intervals); tight (20 us to 10 ms, bursts up to 50); local (50 us to 2
    ms, a store that answers within microseconds); stepped (2 to 50 ms, the store's clock is stepped often);
    long (jobs of 30 s outlive their leases); anew (the same where records are lost); drift (250 ppm);
    changed (interval, burst and limit while running); loops (processes that die again and again);
    interrupted (a process that was granted stops around then; requests arrive twice, messages are lost, the
    store fails over); callers (each wants the next slot once its last job has ended, and stays away now and
    then); regulars (the same with faults); swift (the same at 20 to 200 us); threads (plain functions, which
    get their slots early and may come too late for them); crowd (some hundred jobs, most are cancelled);
    withdrawn (a job of a process that was granted is cancelled around then); exits (processes that end when
    their handles are closed); shaky (limits, lost messages, outages, handles that are closed meanwhile);
    backlog (nothing but jobs that wait); rows (many slots in a row, in the midst of which processes stop);
    far (a tolerance that is less than the way to the store, and handles that wait until slots have surely
    come); gone (the store is away for longer than jobs wait for it); windows (several limits, units that
    are settled later, and most faults); reclaims (tickets are reclaimed around the time that others were
    granted, or the interval grows then); all.
    In every mix, queues are paused, cooled down, reclaimed, reconfigured and inspected, jobs are cancelled,
    time out, fail and are tried again, cost several slots and have priorities, handles close and join, and
    some queues have bursts, a limit of running jobs, a tolerance of their own, or a key.

What is checked, by true time and from outside
    slots       a job begins in its slot, neither before it nor later than the tolerance allows; where the
                slots behind are its process's own, until the end of the last of them
    told        the slot that a job is told is the one that it begins in, as well as its process can know it
    surely      a handle that is to wait until its slots have surely come starts nothing before, ever
    spacing     starts are an interval less the tolerance apart; n in a row take n - 1 intervals less twice
                the tolerance, with a burst n - `burst` intervals less the tolerance
    clock       the queue's clock goes with the store's, and stands still for the length of a pause
    fairness    a job that is first in line lets others begin no more than they may hold tickets
    order       slots are used in ticket order; jobs of one handle and priority begin in the order added,
                those of higher priorities first
    places      every start was granted by the store, and no slot starts two jobs
    holds       while the queue is held only jobs begin that were granted before, and those soon: within
                twice the slowest round trip that their process has had (or 50 ms), 100 ms for late timers,
                the notice that their process gave, and the tolerance; a hold is never longer than was asked
    fates       every job of a live process ends once, with its result, or with an error that is documented
                and has a cause; it is started as often as it has attempts, and not after it ended otherwise
    limits      no more jobs run than `max_running`
    costs       a job of several slots takes them all
    progress    where only one process has jobs that wait, the queue isn't held, and the store can be reached,
                it asks 24 times at most until a job begins, however late its timers are
    waiting     a process that is told that the queue goes on asks at once; a slot that is granted in time
                isn't slept through while a job waits; the store hears within six seconds that a job ended
    waste       where nothing goes wrong, no slot passes empty that a job waits for, but for those of callers
                that stay away
    questions   then a process asks three times for a job at most, once more when nobody waits any more, and
                eight times at first; five times more for a job where its way is long for the tolerance
    tickets     then a job begins with the ticket that its caller was told, if timers are no later than the
                tolerance
    outages     jobs that wait for an absent store fail after a minute; it is asked twice a second at most
    windows     in any window of a limit, and its jitter, jobs take at most so much as it allows, by what
                each really took and when it began
    closing     a handle that is closed starts nothing any more but what it is to drain, and that it does;
                when its process ends, the store knows which of its jobs ended
    reports     a handle says that its store lost its record if, and only if, it did
    misses      a slot is missed only when it is past its tolerance, holds taken off
    record      counters and the queue's clock never go back, but for late grants, and these move slots by
                no more than they are late; no process is told of a
                lower ticket or of less late grants than it knew of; a question that reaches the store
                twice sets that clock back once; no process uses or returns a ticket that its record has not
                issued
    liveness    once faults end, every job ends within a slot for each, the slots that are outstanding, and a
                fixed time for time-outs, polls and leases; so does everything else that was called
    rest        with nothing to do, a handle has no task and no timer

Allowances, each for what can't be known, and no more
    error       what the record says by how much shards may be wrong about its clock (`inspect().spacing`);
                that a shard says so only if its way to the store is too long is checked, too
    excuses     one start for each step of the store's clock, and one for each slot that was granted before
                it, unless an answer had shown the step to its process; one for each loss of writes, and for
                each ticket that the store issued again, or whose end it had forgotten; they are counted.
                Jobs that were granted before their record was gone may begin beside those of the new one.
                Two jobs on a ticket that was issued again have one lease
    unseen      a step that is shorter than two round trips are long, and what was known aged by between
                them, can't be told from delays: for as long, a process may be wrong by its length
    holds       with a limit of running jobs, a slot that was asked about too early, because its process had
                not heard of a hold or a step that moved it, may begin long after a pause began
    leases      a process that gave up a request may have a lease renewed by it afterwards, of a job that has
                ended; one that can't reach the store while its handle is closed leaves its leases to lapse
    windows     starts in slots from before a step of the store's clock count where they would be without it.
                What a job took beyond its estimate delays the tickets that are issued once the store knows of
                it. After a question that gives units back has reached the store twice, nothing is judged
    costs       not judged where the store could not be reached, lost writes, or was paused
    progress    not judged where jobs cost several slots: one too cheap for the next job is passed over
    made anew   that a record begins quiet after one that was lost isn't told from the one early start that a
                loss excuses; the model and the rules' own tests see to it
    processes   a stall falls between two steps of the event loop, never between the last check and the first
                instruction of an async job: there is no step in between
"""

from intervalq.testing.simulation.mixes import MIXES
from intervalq.testing.simulation.run import Run, simulate

__all__ = ["MIXES", "Run", "simulate"]
