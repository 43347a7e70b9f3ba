"""Tenants: one flow of messages in lanes, by who sent them, so that a noisy one waits for itself.

tenants.py         lanes declared, tenants isolated, queues adopted
move_messages.py   from a queue to an exchange
move_bindings.py   the same for what is bound to a queue
"""
