"""The planning side of a source: one per query, in the driver's planner process.

driver.py            plans one batch after another
planner.py           how much of which queue
rates.py             the rates of queues
budgets.py           permits for whole batches
settling.py          what was really read of the batch before
dedup_memory.py      which batches' rows may still come as copies
checkpoint.py        resuming; what earlier runs left staged
checks.py            queues refused before a query starts
partitioned.py       the current queues of partitions
tenants.py           the lanes of tenants
cut_off_node.py      another node instead
progress.py          what the query's progress shows
reporting.py         reports to the fleet
clock.py             time that never goes back
"""
