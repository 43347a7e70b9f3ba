/* The yardstick: rabbitmq-c, consuming with multiple-acks every half window over one or more queues, or
 * publishing with confirms.
 *
 *   rabbitmq_c consume HOST PORT VHOST PREFETCH COUNT QUEUE...
 *   rabbitmq_c publish HOST PORT VHOST IN_FLIGHT COUNT QUEUE SIZE
 *   rabbitmq_c publish-safe ...    the same, persistent and mandatory
 *   rabbitmq_c publish-burst ...   as publish-safe, but IN_FLIGHT messages in one write, and no more until all are
 *                                  confirmed: the broker never had more at a time, and has less to do for each
 *
 * User and password come from LEASH_BENCH_USER and LEASH_BENCH_PASSWORD. Prints one line: seconds, CPU seconds.
 */
#define _GNU_SOURCE
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

static double wall(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static double cpu(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void check(amqp_rpc_reply_t reply, const char *what) {
  if (reply.reply_type != AMQP_RESPONSE_NORMAL) {
    fprintf(stderr, "%s failed\n", what);
    exit(1);
  }
}

static amqp_connection_state_t connect_to(char **argv) {
  amqp_connection_state_t connection = amqp_new_connection();
  amqp_socket_t *socket = amqp_tcp_socket_new(connection);
  if (amqp_socket_open(socket, argv[2], atoi(argv[3]))) {
    fprintf(stderr, "cannot connect\n");
    exit(1);
  }
  check(amqp_login(connection, argv[4], 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, getenv("LEASH_BENCH_USER"),
                   getenv("LEASH_BENCH_PASSWORD")),
        "login");
  return connection;
}

static void consume(amqp_connection_state_t connection, int prefetch, long count, int queues, char **names) {
  int *unacked = calloc(queues + 1, sizeof(int));
  int half = prefetch > 1 ? prefetch / 2 : 1;
  for (int i = 1; i <= queues; i++) {
    amqp_channel_open(connection, i);
    check(amqp_get_rpc_reply(connection), "channel.open");
    amqp_basic_qos(connection, i, 0, prefetch, 0);
    check(amqp_get_rpc_reply(connection), "basic.qos");
    amqp_basic_consume(connection, i, amqp_cstring_bytes(names[i - 1]), amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
    check(amqp_get_rpc_reply(connection), "basic.consume");
  }
  for (long n = 0; n < count; n++) {
    amqp_envelope_t envelope;
    amqp_maybe_release_buffers(connection);
    check(amqp_consume_message(connection, &envelope, NULL, 0), "consume");
    if (++unacked[envelope.channel] >= half || n + 1 == count) {
      amqp_basic_ack(connection, envelope.channel, envelope.delivery_tag, 1);
      unacked[envelope.channel] = 0;
    }
    amqp_destroy_envelope(&envelope);
  }
  free(unacked);
}

/* Waits for the next one; returns how many messages are confirmed now. */
static long confirm(amqp_connection_state_t connection, long confirmed) {
  amqp_frame_t frame;
  amqp_maybe_release_buffers(connection);
  if (amqp_simple_wait_frame(connection, &frame) || frame.payload.method.id != AMQP_BASIC_ACK_METHOD) {
    fprintf(stderr, "no confirm\n");
    exit(1);
  }
  amqp_basic_ack_t *ack = frame.payload.method.decoded;
  return ack->multiple ? (long)ack->delivery_tag : confirmed + 1;
}

/* The cheapest publisher that there can be: the same bytes again and again. */
static void burst(amqp_connection_state_t connection, long in_flight, long count, char *queue, long size) {
  amqp_channel_open(connection, 1);
  check(amqp_get_rpc_reply(connection), "channel.open");
  amqp_confirm_select(connection, 1);
  check(amqp_get_rpc_reply(connection), "confirm.select");
  unsigned char name = strlen(queue), *message = malloc(size + 300), *at = message;
  unsigned char method[] = {1, 0, 1, 0, 0, 0, 9 + name, 0, 60, 0, 40, 0, 0, 0, name};
  unsigned char header[] = {2, 0, 1, 0, 0, 0, 15, 0, 60, 0, 0, 0, 0, 0, 0, size >> 24, size >> 16, size >> 8, size,
                            0x10, 0, 2, 0xce, 3, 0, 1, size >> 24, size >> 16, size >> 8, size};
  at = mempcpy(at, method, sizeof method);
  at = mempcpy(at, queue, name);
  *at++ = 1; /* mandatory */
  *at++ = 0xce;
  at = mempcpy(at, header, sizeof header);
  memset(at, 'x', size);
  at += size;
  *at++ = 0xce;
  long one = at - message;
  int socket = amqp_get_sockfd(connection);
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) & ~O_NONBLOCK);
  unsigned char *all = malloc(one * in_flight);
  for (long n = 0; n < in_flight; n++) memcpy(all + n * one, message, one);
  for (long sent = 0; sent < count;) {
    long lot = count - sent < in_flight ? count - sent : in_flight;
    for (long done = 0; done < lot * one;) {
      ssize_t written = send(socket, all + done, lot * one - done, MSG_NOSIGNAL);
      if (written < 0) {
        fprintf(stderr, "publish failed\n");
        exit(1);
      }
      done += written;
    }
    sent += lot;
    for (long confirmed = sent - lot; confirmed < sent;) confirmed = confirm(connection, confirmed);
  }
}

static void publish(amqp_connection_state_t connection, long in_flight, long count, char *queue, long size,
                    int safe) {
  amqp_basic_properties_t persistent = {._flags = AMQP_BASIC_DELIVERY_MODE_FLAG, .delivery_mode = 2};
  amqp_bytes_t body = amqp_bytes_malloc(size);
  memset(body.bytes, 'x', size);
  amqp_channel_open(connection, 1);
  check(amqp_get_rpc_reply(connection), "channel.open");
  amqp_confirm_select(connection, 1);
  check(amqp_get_rpc_reply(connection), "confirm.select");
  long sent = 0, confirmed = 0;
  while (confirmed < count) {
    if (sent < count && sent - confirmed < in_flight) {
      if (amqp_basic_publish(connection, 1, amqp_empty_bytes, amqp_cstring_bytes(queue), safe, 0,
                             safe ? &persistent : NULL, body)) {
        fprintf(stderr, "publish failed\n");
        exit(1);
      }
      sent++;
      continue;
    }
    confirmed = confirm(connection, confirmed);
  }
  amqp_bytes_free(body);
}

int main(int argc, char **argv) {
  if (argc < 8) {
    fprintf(stderr, "usage: rabbitmq_c consume|publish HOST PORT VHOST WINDOW COUNT QUEUE... [SIZE]\n");
    return 2;
  }
  double began = wall(), spent = cpu();
  amqp_connection_state_t connection = connect_to(argv);
  if (!strcmp(argv[1], "consume"))
    consume(connection, atoi(argv[5]), atol(argv[6]), argc - 7, argv + 7);
  else if (!strcmp(argv[1], "publish-burst"))
    burst(connection, atol(argv[5]), atol(argv[6]), argv[7], atol(argv[8]));
  else
    publish(connection, atol(argv[5]), atol(argv[6]), argv[7], atol(argv[8]), !strcmp(argv[1], "publish-safe"));
  printf("%.6f %.6f\n", wall() - began, cpu() - spent);
  amqp_connection_close(connection, AMQP_REPLY_SUCCESS);
  amqp_destroy_connection(connection);
  return 0;
}
