"""An exhaustive check of the protocol: the library's own rules, abstract shards, every interleaving.

    python tests/model_check.py                                     # the scopes of the test suite
    python tests/model_check.py --scope crashes --shards 4 --tickets 3
    python tests/model_check.py --bug revocation-ignored            # and how it is found

A state is a record, the shards, the requests and answers that are on their way, and what the judges remember.
The search takes every transition from every state, breadth first, so a counterexample is the shortest one.
Instants are counted from now, and slots far behind the queue's clock are alike, so a scope has finitely many
states although time has no end: it bounds the number of shards and tickets, and how often each fault happens.
Answers may always be late or lost. Shards have no names: states that differ in their order are one.

How the abstract shard relates to the real one (`intervalq/_shard`)
    It may do everything that the real one does, and more, except for what is listed as missing.
    asks        it asks with any of its first tickets, for any number of new ones up to its lookahead, at any
                time; the real one asks shortly before a slot, for as many as it needs. For both, one question
                is in transit at a time, and new slots are granted only if all tickets are asked about
    transit     a question that arrives later is the same as one that is asked later, because its contents
                don't change in transit; so question and step are one, and the answer takes any time. A
                request that its shard no longer waits for, and that arrives all the same, or twice, is
                modelled (`copies`)
    hears       it learns as `Connection._learn` and `Answers.take_in` do: slots of another record are
                forgotten, a step of the clock invalidates what was fixed on it, tickets are granted, missed
                and taken, and an instant is fixed when its answer arrives
    begins      a job begins when the shard's bounds of the store's clock say that the slot has come and is
                not past (`StoreTime.bounded`).
                With `blur` 0 the shard knows the clock exactly, and the job begins at any time in the slot's
                window, or never: every bound of a real shard that contains the truth allows a part of that.
                With more, each answer bounds the clock that well, on either side; bounds don't age, which
                only makes real shards begin less
    gives up    it may give up any granted slot, at any time; it gives up a past one before anything else
    gives back  a question gives back all given-up slots, or none (they were given up too late for it), and
                again if an answer was lost; when a shard leaves, it gives back all that it has (`leaving`)
    leases      jobs end at any time; one whose lease ever lapsed is not counted
    late        in the scope `late`, a slot that is over is asked about again, however late that arrives; one
                that is as far behind as is distinguished is not granted late
    jobs        a job always waits, at a cost of one slot. The simulation has orders, priorities and retries

Missing: late grants beside holds, limits and failovers, settings that differ at first contact, jobs of
several slots, bursts that are reconfigured, several commands of one shard that wait for each other, drift of
clocks; the simulation has them all.

What is checked, in every state or transition
    spacing     of any starts, n intervals less the tolerance (and the burst) are between the first and the
                n-th after it, in true time; an interval less the tolerance where the record was lost between
    places      no slot is used twice; without a burst, slots are used in ticket order
    counters    `ticket`, `current`, `revoked_through` and, except for late grants, the queue's clock never go
                back, nor does what a shard is told
    holds       while the queue is held, nothing is granted and its clock stands still; otherwise it goes on
    limits      of the jobs whose leases were always renewed in time, no more run than are allowed
    liveness    from every state in which a live shard has a slot in time, or may have one, a job can still
                begin without anything more going wrong

Allowances, as documented: one early start for each forward step of the store's clock, each failover, and each
record made anew by a shard that knew of none before it; slots that were granted before a step that
their shard hasn't heard of; slots that were issued before the store lost writes.
"""
