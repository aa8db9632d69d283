"""moto's server, with a lock for each queue.

Without it threads change the messages of a queue at the same time: a message that arrives during a deletion is lost,
and two receivers can get the same one. A long poll releases the lock while it waits.
"""

from moto.server import main
from moto.sqs.models import Queue, SQSBackend

delete, receive = Queue.delete_message, SQSBackend.receive_message


def delete_alone(self, receipt_handle):
    with self._messages_lock:
        delete(self, receipt_handle)


def receive_alone(self, queue_name, *args, **kwargs):
    with self.get_queue(queue_name)._messages_lock:
        return receive(self, queue_name, *args, **kwargs)


Queue.delete_message, SQSBackend.receive_message = delete_alone, receive_alone
main()
