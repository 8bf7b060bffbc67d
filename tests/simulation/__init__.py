"""Deterministic simulation: the real handles, shards and rules under faults, in virtual time, from one seed.

    python tests/simulation                      # 1,000 schedules of each mix
    python tests/simulation --mix all --seed 7 --trace

A run is one seed of one mix. Two to five processes share a queue. Each has its own handle, a clock that
starts at an arbitrary value and runs up to 200 ppm fast or slow, slightly late timers, and its own route to
the store (LAN or WAN, with different delays each way). No part of intervalq is replaced by a model: the store
is the rules behind `DocumentStore`, with a clock that also runs fast or slow. The same seed always gives the
same trace, in any process.

Mixes
    calm         no faults
    slow         some messages take up to 2.5 s longer
    lossy        requests, answers and wake-ups are lost; connections are cut
    stalls       a process stops at any of its steps for up to 5 s
    crashes      a process dies at any of its steps, and releases nothing
    clock        the store's clock is set forward and back
    failover     the store falls back to an older copy of the records or to none, and half of the messages
                 in flight are lost
    late         timers are late by up to three intervals; requests arrive twice
    taken        processes run for only 20 % of the time, in turns of up to two intervals
    tight        intervals of 20 us to 10 ms, bursts of up to 50
    local        intervals of 50 us to 2 ms, a store that answers within microseconds
    stepped      intervals of 2 to 50 ms, frequent steps of the store's clock
    long         jobs of up to 30 s, which outlive their leases
    anew         jobs of up to 30 s, and records are lost
    drift        clocks run up to 250 ppm fast or slow
    changed      interval, burst and limit change at run time
    loops        processes that are restarted and die again and again
    interrupted  a process stops around the time of a grant; requests arrive twice, messages are lost, and
                 the store fails over
    callers      each caller requests the next slot when its last job has ended, and sometimes stays away
    regulars     the same with faults
    swift        the same at intervals of 20 to 200 us
    threads      plain functions, which get their slots early and may be too late for them
    crowd        well over a hundred jobs, most of which are cancelled
    withdrawn    a job is cancelled around the time of a grant to its process
    exits        processes that end when their handles are closed
    hours        a queue whose hours end for a minute
    shut         handles that are closed while their jobs wait, and to which more jobs come as these begin
    shaky        limits, lost messages, outages, and handles that are closed in the meantime
    frail        long jobs under a limit, lost messages and lost records
    backlog      all jobs wait from the beginning
    rows         processes stop in the middle of many consecutive slots
    far          a tolerance below the latency of the store; some handles have `strict=True`
    gone         outages that last longer than jobs wait for the store
    windows      several limits, units that are settled later, and most faults
    settled      the same in longer windows, some of them with fixed edges, with lost messages alone
    deadlines    jobs that must begin in time, most of them too soon, and calls of `try_slot` and `quote`
    budgets      the same with several limits
    hurry        the same with most faults
    drowsy       many jobs in processes whose timers are later than the tolerance
    blocked      the same in processes that run for only 20 % of the time, or that are busy after each answer
    lags         plain functions whose threads wake late, by up to an interval, and are slow to start
    handed       the same where they are slow by up to an interval, and cancelled around the time of a grant
    debts        outages that last longer than jobs wait for the store, while costs are to be settled
    returns      the same without long outages, where most jobs are plain functions, which may come too late
    brisk        callers, intervals below 100 us, bursts and late timers: new jobs find slots ready
    reclaims     tickets are reclaimed, or the interval grows, around the time of grants
    exact        timers that are exact, and clocks that go on while they are read: processes watch them
    joins        handles with different settings, of which some are started later
    owing        long outages and closed handles, while most jobs took more than their estimates
    unlike       handles with different limits, which are changed, and records that are lost
    paused       many pauses of a queue, late timers, and wake-ups that come only after a while
    faint        a tolerance below the latency of the store, and a limit of running jobs
    spoilt       limits, late timers and stalls: slots are missed, and nobody needs what they took
    roomy        limits without faults, few jobs, and cancelled ones
    all          most faults at once

    In every mix, queues are paused, cooled down, reclaimed, reconfigured and inspected; jobs are cancelled,
    time out, fail and are retried, cost several slots and have priorities; handles close and join; and some
    queues have bursts, a limit of running jobs, their own tolerance, or a key.

What is checked, from outside and in true time
    slots       a job begins in its slot: not before it, and not later than the tolerance allows; if the
                following slots belong to the same process, until the end of the last of them
    announced   the slot that a job is given is the one in which it begins, as precisely as its process can
                know it; `Job.due` is when the slot of its ticket comes, by the last answer to its process
    strict      a handle with `strict=True` never starts a job before its slot
    spacing     starts are an interval less the tolerance apart; n in a row take n - 1 intervals less twice
                the tolerance, with a burst n - `burst` intervals less the tolerance
    clock       the queue's clock follows the store's, and stands still for the length of a pause
    fairness    while a job is the first in its process's wait queue, another process starts no more jobs
                than its `lookahead` allows
    order       slots are used in ticket order; jobs of one handle begin by priority, and in the order in
                which they were added within a priority
    places      every start was granted by the store, and no slot starts two jobs
    holds       while the queue is held, only jobs with an earlier grant begin, and soon: within twice the
                slowest round trip of their process so far (or 50 ms), 100 ms for late timers, the notice
                that their process gave, and the tolerance; no slot is granted longer than that before it
                comes; a hold is never longer than requested
    fates       every job of a live process ends once, with its result or with a documented error for which
                there is a reason; it starts once per attempt, and never after it has ended
    limits      no more jobs run than `max_running`; a process reports only on jobs of its own record
    costs       a job that costs several slots takes all of them
    progress    if only one process has waiting jobs, the queue isn't held, and the store can be reached, a
                job begins after at most 24 requests, however late the timers are
    waiting     a process that learns that a hold has ended sends a request at once; a timely grant is used
                if a job waits; the store learns within six seconds that a job has ended
    waste       without faults, no slot stays empty while a job waits, except those taken ahead for callers
                that stayed away
    requests    without faults, a process sends at most three requests per job, one more when its last
                waiting job is gone, and eight at the beginning; five more per job if its round trips are
                long compared to the tolerance. Leases are renewed once in a third of their time, and again
                soon after a request without an answer
    tickets     without faults, a job begins with the ticket that its caller was given, if timers are no
                later than the tolerance
    outages     jobs that wait for an unreachable store fail after a minute; at most two requests per second
                are sent to it, and none after a minute if no job waits
    deadlines   a job with a timeout begins, or is refused, by the end of its time; it is refused early only
                if the store's record shows that its slot comes later; without faults, it is refused at
                once when that is known, and not while slots stay empty. `retry_after` and `quote` say when
                a job added now would begin, by the last answer that its process got
    warnings    a process warns once, and only if most of its jobs are late, and does so then; the cause that
                it names is one that its process had. It warns of a store that is too far away only if its
                round trips are too long for the tolerance, does so if it reports an error that takes a
                notable part of the spacing, and states the spacing that follows from that error
    settlements what a job took is reported as it is, with the cell of its slot, within a second, or within
                five seconds while the queue is held; units that it did not need are sent once, those beyond
                its estimate until a request is answered, or the handle is closed. A request is sent for that
                alone only after this time. Missed slots give back what they took
    polls       a process that waits for the end of a hold asks within 0.5 s of it, or within 5 s if the store
                sends wake-ups, of which one may be lost, or at once if none can be lost; at the end of a
                pause that it knows, also from the answer to another command, it asks at once. So it does in
                a full queue for the slot of a thread that came too late
    answers     a slot that has come is granted, or another one issued, by the first request that is in time
    room        with limits and without faults, a job that comes alone begins an interval after the last one
                if all windows have room
    windows     in any window of a limit, plus its jitter, or from one fixed edge to the next, jobs take at
                most what the limit allows, counting what each really took, at the time when it began
    closing     a closed handle starts only jobs that it is to drain, and does start those; when its process
                ends, the store knows which of its jobs have ended
    hours       outside of the hours of its queue no job begins, except in an earlier slot, and no slot is
                asked for; when they begin, a process whose jobs wait asks within half a second
    reports     a handle reports that its store lost its record if and only if that happened
    misses      a slot is missed only when its tolerance is over, not counting holds
    settings    a handle that has configured its queue creates a lost record with these settings
    record      counters and the queue's clock never go back, except for late grants, and these move slots
                by no more than they are late; no process is answered with a lower ticket or fewer late
                grants than it knew of; a request that reaches the store twice sets that clock back once; no
                process uses or returns a ticket that its record has not issued
    liveness    once faults end, every job ends within one slot for each, the outstanding slots, and a fixed
                time for timeouts, polls and leases; so does every other call
    rest        an idle handle has no task and no timer

Allowances, each limited to what can't be known
    error       the amount by which shards may be wrong about the store's clock, as the record states it
                (`inspect().spacing`); a judge checks that a shard states one only if its round trips are
                too long
    excuses     one start for each step of the store's clock, and one for each slot that was granted before
                the step, unless an answer had shown the step to its process; one for each loss of writes,
                and for each ticket that the store issued again, or whose end it had forgotten. Excuses are
                counted. Jobs granted before their record was lost may begin beside those of the new one.
                Two jobs with the same ticket, issued twice, share one lease
    unseen      a step can't be told from delays if it is shorter than two round trips plus the drift
                between them; until it can, a process may be wrong by its length
    holds       with a limit of running jobs, a slot that was requested too early, because its process did
                not know of a hold or step that moved it, may begin long after a pause began
    leases      a request that was given up may still renew the lease of a job that has ended; a process
                that can't reach the store while its handle is being closed leaves its leases to expire
    windows     starts in slots from before a step of the store's clock count where they would be without
                it. What a job took beyond its estimate delays the tickets that are issued once the store
                knows of it. Nothing is judged after a request that gives units back has arrived twice, or
                once the store has lost writes
    deadlines   refusals are not judged once the store's clock was stepped or it lost writes; nor what is
                told, if requests or answers were lost. `add` doesn't ask before a job waits
    settlements nothing is expected for a slot that no longer counts, or of a process that has died or was
                closed, or once the store has lost writes
    costs       not judged if the store was unreachable, lost writes, or was paused
    progress    not judged if jobs cost several slots: a slot too cheap for the next job is skipped
    new records whether the record after a lost one begins with a quiet interval can't be told from the one
                early start that a loss excuses; the model and the tests of the rules check it
    hours       what is judged of waits, of waste and of refused jobs isn't where hours end in a run
    processes   a stall falls between two steps of the event loop, never between the last check and the first
                instruction of an async job: there is no step in between
"""

from simulation.mixes import MIXES
from simulation.run import Run, simulate

__all__ = ["MIXES", "Run", "simulate"]
