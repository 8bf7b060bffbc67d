"""All planted bugs, and how many schedules of a mix it takes to find each of them.

Those of `bugs_found` were real. A test plants each of them; by hand: `python tests/simulate_bug.py NAME`.

    bug                           mix            found
    question-of-another-record    failover          41
    leases-of-keys                calm              41
    no-notice                     interrupted       28
    slots-crowd                   calm               1
    clock-runs-on                 calm              48
    hold-ignored                  calm               5
    heal-goes-back                failover           1
    not-healed                    failover          16
    step-not-absorbed             clock              3
    missed-granted                stalls             1
    gap-ignored                   stalls             3
    late-for-nothing              calm              23
    set-back-short                slow              41
    late-before-it-came           taken             14
    late-in-a-pause               late             140
    late-forgotten                failover         390
    copy-granted-late             interrupted       20
    new-at-once                   stalls             3
    freed-not-dead                calm              76
    revocation-ignored            calm              19
    generation-ignored            failover         108
    old-rate                      calm              19
    dead-waited-for               crashes            1
    no-last-check                 stalls             1
    check-before-answer           stalls             1
    too-tolerant                  stalls             1
    tolerance-not-widened         calm              20
    early-for-nothing             stalls             1
    late-threads-start-over       lags               5
    late-threads-sleep-again      lags             173
    late-threads-count            lags               2
    by-new-settings               changed            2717
    late-ones-crowd               late             123
    way-is-nothing                slow               4
    clocks-compared               calm               3
    slot-used-again               lossy              8
    used-given-back               stalls             1
    order-lost                    stalls             1
    last-in-first-out             calm               1
    wakeup-lost                   calm               5
    cost-forgotten                calm              16
    leases-kept                   calm              32
    error-halved                  stalls           4
    drift-ignored                 drift              6
    perhaps-late                  stalls           9
    moved-too-far                 late             1
    cost-takes-one                calm            16
    granted-given-back            interrupted       63
    healed-without-slot           failover       135
    old-burst                     changed          3
    hold-ends-when-seen           calm             1
    slots-stay-in-a-hold          calm             4
    one-more-running              long             1
    leases-not-renewed            long             1
    leases-for-ever               long             9
    leases-not-moved              long             9
    finish-of-another-record      anew            59
    lookahead-ignored             calm            49
    leases-of-another-record      anew            10
    step-unseen                   stepped          21
    ready-before-they-open        brisk             7
    nobody-looks                  local           208
    resumed-unheard               calm             32
    woken-for-nothing             calm              6
    held-by-a-lost-record         anew             17
    lost-grants-used              all            10,000,026
    lease-of-the-next             long              1
    renewed-by-chance             long              1
    ends-forgotten                long            335
    priorities-swapped            calm              4
    cancelled-counts              calm              11
    rows-across-holds             stepped          30
    old-reading                   stepped          169
    tried-again-at-once           calm              9
    one-too-many                  backlog           1
    looks-again                   callers           1
    first-for-all                 backlog           1
    drain-swapped                 exits             2
    withdrawn-untold              withdrawn        21
    loss-unsaid                   failover          4
    taken-in-late                 threads          185
    woken-in-vain                 gone               6
    never-given-up                gone               1
    slept-through                 debts            287
    asks-for-nobody               gone               3
    configured-in-vain            joins             31
    late-threads-take-nothing     returns           26
    window-short                  windows            1
    jitter-forgotten              windows            9
    lateness-forgotten            windows            1
    settled-twice                 windows           13
    units-stay-over               returns            5
    used-units-given-back         windows            1
    end-of-row-forgotten          reclaims          18
    new-or-not                    reclaims          66
    one-slot-too-strict           deadlines          1
    notice-in-a-hold              deadlines       175
    units-wait-in-a-hold          budgets          111
    told-of-its-own-slot          deadlines         13
    waits-in-vain                 deadlines          7
    warned-at-once                drowsy             1
    never-warned                  drowsy            50
    cause-not-looked-for          drowsy             6
    polls-too-seldom              calm               5
    pause-ends-unseen             calm               7
    refunds-sent-again            windows            8
    overruns-forgotten            settled           42
    reports-wait                  windows           14
    cell-of-another-time          windows            4
    far-without-a-word            far                4
    passed-unsaid                 stalls          26
    given-up-twice                crowd            184
    given-back-to-nobody          loops           28
    nothing-given-back            calm            12
    closed-too-soon               windows          3
    ends-by-an-error              calm             1
    timer-left-open               exact            1
    handed-on-time                threads         30
    adopts-unasked                joins            2
    starts-at-once                joins            1
    cause-half-known              blocked        128
    hours-end-unseen              hours           40
    ready-though-closed           shut            40
"""

from planted import (
    bugs_found,
    bugs_from_promises,
    bugs_in_rules,
    bugs_in_shards,
    bugs_in_windows,
    bugs_of_accounts,
    bugs_of_deadlines,
    bugs_of_settlements,
    bugs_of_slips,
    bugs_of_thrift,
    bugs_of_warnings,
)
from planted.planting import BUGS, Bug, planted

__all__ = [
    "BUGS",
    "Bug",
    "bugs_found",
    "bugs_from_promises",
    "bugs_in_rules",
    "bugs_in_shards",
    "bugs_in_windows",
    "bugs_of_accounts",
    "bugs_of_deadlines",
    "bugs_of_settlements",
    "bugs_of_slips",
    "bugs_of_thrift",
    "bugs_of_warnings",
    "planted",
]
