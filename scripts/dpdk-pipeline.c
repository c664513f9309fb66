/*
 * An L2 switch on DPDK's software switch pipeline (librte_pipeline, SWX), from ring to ring on one thread: the peer of the
 * project's own L2 switch in crates/forwarding/datapath/src/p4/cycles.rs, with as many stations, the same frames and bursts.
 * DPDK interprets the program's instructions. `scripts/bench-dpdk-pipeline` builds and runs it.
 *
 * Prints nanoseconds per packet: those of the tenth percentile of bursts, and the median.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <rte_swx_ctl.h>
#include <rte_swx_pipeline.h>
#include <rte_swx_port_ring.h>

#define STATIONS 64
#define FRAME 64
#define BURST 32
#define BURSTS 20000
/* Instructions that the pipeline runs until it is looked at again. */
#define SLICE 256

static void check(int is_right, const char *what)
{
	if (!is_right) {
		fprintf(stderr, "dpdk-pipeline: %s\n", what);
		exit(1);
	}
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void declare(struct rte_swx_pipeline *pipeline)
{
	struct rte_swx_field_params ethernet[] = { { "dst", 48 }, { "src", 48 }, { "kind", 16 } };
	struct rte_swx_field_params meta[] = { { "port_in", 32 }, { "port_out", 32 } };
	struct rte_swx_field_params forward[] = { { "port", 32 } };
	const char *known_code[] = { "return" };
	const char *forward_code[] = { "mov m.port_out t.port", "return" };
	const char *discard_code[] = { "drop" };
	int failed;

	failed = rte_swx_pipeline_struct_type_register(pipeline, "ethernet_t", ethernet, COUNT(ethernet), 0);
	failed |= rte_swx_pipeline_struct_type_register(pipeline, "meta_t", meta, COUNT(meta), 0);
	failed |= rte_swx_pipeline_struct_type_register(pipeline, "forward_t", forward, COUNT(forward), 0);
	failed |= rte_swx_pipeline_packet_header_register(pipeline, "ethernet", "ethernet_t");
	failed |= rte_swx_pipeline_packet_metadata_register(pipeline, "meta_t");
	failed |= rte_swx_pipeline_action_config(pipeline, "known", NULL, known_code, COUNT(known_code));
	failed |= rte_swx_pipeline_action_config(pipeline, "forward", "forward_t", forward_code, COUNT(forward_code));
	failed |= rte_swx_pipeline_action_config(pipeline, "discard", NULL, discard_code, COUNT(discard_code));
	check(!failed, "a declaration is refused");
}

/* A table of addresses; what it does not have is dropped. */
static void add_table(struct rte_swx_pipeline *pipeline, const char *name, const char *field, const char *action)
{
	struct rte_swx_match_field_params key = { .name = field, .match_type = RTE_SWX_TABLE_MATCH_EXACT };
	const char *actions[] = { action, "discard" };
	struct rte_swx_pipeline_table_params params = {
		.fields = &key,
		.n_fields = 1,
		.action_names = actions,
		.n_actions = 2,
		.default_action_name = "discard",
	};

	check(rte_swx_pipeline_table_config(pipeline, name, &params, NULL, NULL, 65536) == 0, "a table is refused");
}

static struct rte_swx_pipeline *build(void)
{
	struct rte_swx_pipeline *pipeline = NULL;
	struct rte_swx_port_ring_reader_params in = { .name = "in", .burst_size = BURST };
	struct rte_swx_port_ring_writer_params out = { .name = "out", .burst_size = BURST };
	const char *code[] = { "rx m.port_in", "extract h.ethernet", "table smac", "table dmac", "emit h.ethernet",
			       "tx m.port_out" };

	check(rte_swx_pipeline_config(&pipeline, "switch", 0) == 0, "no pipeline");
	check(rte_swx_pipeline_port_in_config(pipeline, 0, "ring", &in) == 0, "no port in");
	check(rte_swx_pipeline_port_out_config(pipeline, 0, "ring", &out) == 0, "no port out");
	declare(pipeline);
	add_table(pipeline, "smac", "h.ethernet.src", "known");
	add_table(pipeline, "dmac", "h.ethernet.dst", "forward");
	check(rte_swx_pipeline_instructions_config(pipeline, code, COUNT(code)) == 0, "instructions are refused");
	check(rte_swx_pipeline_build(pipeline) == 0, "the pipeline is refused");
	return pipeline;
}

static void add(struct rte_swx_ctl_pipeline *control, const char *table, const char *text)
{
	int is_blank = 0;
	struct rte_swx_table_entry *entry = rte_swx_ctl_pipeline_table_entry_read(control, table, text, &is_blank);

	check(entry != NULL && !is_blank, text);
	check(rte_swx_ctl_pipeline_table_entry_add(control, table, entry) == 0, "an entry is refused");
}

static void fill(struct rte_swx_pipeline *pipeline)
{
	struct rte_swx_ctl_pipeline *control = rte_swx_ctl_pipeline_create(pipeline);
	char text[128];

	check(control != NULL, "no control");
	for (int station = 0; station < STATIONS; station++) {
		snprintf(text, sizeof(text), "match 0x0200000001%02x action known", station);
		add(control, "smac", text);
		snprintf(text, sizeof(text), "match 0x0200000002%02x action forward port 0x0", station);
		add(control, "dmac", text);
	}
	check(rte_swx_ctl_pipeline_commit(control, 1) == 0, "entries are refused");
}

static void make_frame(struct rte_mbuf *packet, int station)
{
	uint8_t *bytes;

	rte_pktmbuf_reset(packet);
	bytes = (uint8_t *)rte_pktmbuf_append(packet, FRAME);
	check(bytes != NULL, "no room for a frame");
	memset(bytes, 0, FRAME);
	memcpy(bytes, (uint8_t[]){ 2, 0, 0, 0, 2, station, 2, 0, 0, 0, 1, station, 8, 0 }, 14);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int count, char **arguments)
{
	static double times[BURSTS];
	struct rte_mbuf *packets[BURST];
	struct rte_mempool *pool;
	struct rte_ring *in, *out;
	struct rte_swx_pipeline *pipeline;
	double ns_per_cycle;

	check(rte_eal_init(count, arguments) >= 0, "EAL");
	pool = rte_pktmbuf_pool_create("pool", 1023, 0, 0, 2176, 0);
	in = rte_ring_create("in", 256, 0, RING_F_SP_ENQ | RING_F_SC_DEQ);
	out = rte_ring_create("out", 256, 0, RING_F_SP_ENQ | RING_F_SC_DEQ);
	check(pool != NULL && in != NULL && out != NULL, "no memory");
	pipeline = build();
	fill(pipeline);
	ns_per_cycle = 1e9 / rte_get_tsc_hz();
	check(rte_pktmbuf_alloc_bulk(pool, packets, BURST) == 0, "no frames");
	for (int burst = 0; burst < BURSTS; burst++) {
		unsigned int done = 0;
		uint64_t begin;

		for (int at = 0; at < BURST; at++)
			make_frame(packets[at], (burst * BURST + at) % STATIONS);
		begin = rte_rdtsc_precise();
		check(rte_ring_enqueue_bulk(in, (void **)packets, BURST, NULL) == BURST, "the ring is full");
		for (int slice = 0; done < BURST; slice++) {
			check(slice < 100000, "packets are lost");
			rte_swx_pipeline_run(pipeline, SLICE);
			done += rte_ring_dequeue_burst(out, (void **)(packets + done), BURST - done, NULL);
		}
		times[burst] = (rte_rdtsc_precise() - begin) * ns_per_cycle / BURST;
	}
	qsort(times, BURSTS, sizeof(times[0]), by_value);
	printf("%.1f %.1f\n", times[BURSTS / 10], times[BURSTS / 2]);
	return 0;
}
