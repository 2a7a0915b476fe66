/* Prints the server that libmemcached's weighted ketama chooses for each key.
 *
 * Arguments: one server each, host:port:weight. Standard input: one key a line. Standard output:
 * the index of each key's server, a line each. Nothing is sent. */

#include <libmemcached/memcached.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
  memcached_st *client = memcached_create(NULL);
  memcached_behavior_set(client, MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1);
  for (int at = 1; at < argc; at++) {
    char host[256];
    unsigned port, weight;
    if (sscanf(argv[at], "%255[^:]:%u:%u", host, &port, &weight) != 3 ||
        memcached_server_add_with_weight(client, host, (in_port_t) port, weight) !=
            MEMCACHED_SUCCESS) {
      fprintf(stderr, "not a server: %s\n", argv[at]);
      return 1;
    }
  }
  char key[260];
  while (fgets(key, sizeof key, stdin))
    printf("%u\n", memcached_generate_hash(client, key, strcspn(key, "\n")));
  memcached_free(client);
  return 0;
}
