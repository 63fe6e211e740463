package podmetrics

import (
	"cmp"
	"context"
	"maps"
	"slices"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

func compareNames(a, b *corev1.Pod) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Resource returns what a kubelet serves at /metrics/resource, for the pods on some virtual nodes.
// The totals of a node are included if there is only one.
func (h *Home) Resource(ctx context.Context, nodes map[string][]*corev1.Pod) ([]*dto.MetricFamily, error) {
	var views []snapshot
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		v, err := h.read(ctx, name, nodes[name])
		if err != nil {
			return nil, err
		}
		views = append(views, v)
	}
	return families(views), nil
}

// Summary returns what a kubelet serves at /stats/summary, for the pods on a virtual node.
func (h *Home) Summary(ctx context.Context, name string, pods []*corev1.Pod) (*stats.Summary, error) {
	v, err := h.read(ctx, name, pods)
	if err != nil {
		return nil, err
	}
	return summary(v), nil
}

// memoryOr1 is a node's amount of memory, at least a byte: metrics-server takes a node that uses
// none, such as one without pods, for one that was not measured.
func memoryOr1(bytes uint64) float64 { return float64(max(bytes, 1)) }

// table collects samples of metrics by their names.
type table struct {
	list []*dto.MetricFamily
}

// family begins a metric family, to which add adds.
func (t *table) family(name, help string, kind dto.MetricType) {
	t.list = append(t.list, &dto.MetricFamily{Name: &name, Help: &help, Type: &kind})
}

// add adds a sample; millis of 0 means without a time.
func (t *table) add(value float64, millis int64, labels ...string) {
	f := t.list[len(t.list)-1]
	m := &dto.Metric{}
	for pair := range slices.Chunk(labels, 2) {
		m.Label = append(m.Label, &dto.LabelPair{Name: &pair[0], Value: &pair[len(pair)-1]})
	}
	if millis != 0 {
		m.TimestampMs = &millis
	}
	if f.GetType() == dto.MetricType_COUNTER {
		m.Counter = &dto.Counter{Value: &value}
	} else {
		m.Gauge = &dto.Gauge{Value: &value}
	}
	f.Metric = append(f.Metric, m)
}

// families renders nodes with a kubelet's metric names, in its order.
func families(nodes []snapshot) []*dto.MetricFamily {
	t := &table{}
	each := func(f func(podUsage)) {
		for _, n := range nodes {
			for _, p := range n.pods {
				f(p)
			}
		}
	}
	eachContainer := func(f func(c containerUsage, labels ...string)) {
		each(func(p podUsage) {
			for _, c := range p.containers {
				f(c, "container", c.name, "namespace", p.pod.Namespace, "pod", p.pod.Name)
			}
		})
	}
	t.family("container_cpu_usage_seconds_total", "Cumulative cpu time consumed by the container in core-seconds, since it was measured first", dto.MetricType_COUNTER)
	eachContainer(func(c containerUsage, labels ...string) { t.add(c.seconds(), c.last.time.UnixMilli(), labels...) })
	t.family("container_memory_working_set_bytes", "Current working set of the container in bytes", dto.MetricType_GAUGE)
	eachContainer(func(c containerUsage, labels ...string) {
		t.add(float64(c.last.memory), c.last.time.UnixMilli(), labels...)
	})
	t.family("container_start_time_seconds", "When the cumulative cpu time of the container began, in seconds since 1970", dto.MetricType_GAUGE)
	eachContainer(func(c containerUsage, labels ...string) { t.add(float64(c.start.UnixNano())/1e9, 0, labels...) })
	failed := 0.0
	for _, n := range nodes {
		if n.err != nil {
			failed = 1
		}
	}
	if len(nodes) == 1 && !nodes[0].total.last.time.IsZero() {
		total := nodes[0].total
		t.family("node_cpu_usage_seconds_total", "Cumulative cpu time consumed by the pods on the virtual node in core-seconds", dto.MetricType_COUNTER)
		t.add(total.seconds(), total.last.time.UnixMilli())
		t.family("node_memory_working_set_bytes", "Current working set of the pods on the virtual node in bytes", dto.MetricType_GAUGE)
		t.add(memoryOr1(total.last.memory), total.last.time.UnixMilli())
	}
	t.family("pod_cpu_usage_seconds_total", "Cumulative cpu time consumed by the containers of the pod in core-seconds", dto.MetricType_COUNTER)
	each(func(p podUsage) {
		t.add(p.sum.seconds(), p.sum.last.time.UnixMilli(), "namespace", p.pod.Namespace, "pod", p.pod.Name)
	})
	t.family("pod_memory_working_set_bytes", "Current working set of the containers of the pod in bytes", dto.MetricType_GAUGE)
	each(func(p podUsage) {
		t.add(float64(p.sum.last.memory), p.sum.last.time.UnixMilli(), "namespace", p.pod.Namespace, "pod", p.pod.Name)
	})
	t.family("resource_scrape_error", "1 if the provider returned no metrics of pods, 0 otherwise", dto.MetricType_GAUGE)
	t.add(failed, 0)
	return slices.DeleteFunc(t.list, func(f *dto.MetricFamily) bool { return len(f.GetMetric()) == 0 })
}

// summary renders a node as a kubelet's summary.
func summary(v snapshot) *stats.Summary {
	out := &stats.Summary{Node: stats.NodeStats{NodeName: v.name, StartTime: metav1.NewTime(v.now)}, Pods: []stats.PodStats{}}
	if !v.total.last.time.IsZero() {
		out.Node.StartTime = metav1.NewTime(v.total.start)
		out.Node.CPU, out.Node.Memory = cpuStats(v.total), memoryStats(v.total)
	}
	for _, p := range v.pods {
		pod := stats.PodStats{
			PodRef:    stats.PodReference{Name: p.pod.Name, Namespace: p.pod.Namespace, UID: string(p.pod.UID)},
			StartTime: metav1.NewTime(p.sum.start), CPU: cpuStats(p.sum), Memory: memoryStats(p.sum),
		}
		for _, c := range p.containers {
			pod.Containers = append(pod.Containers, stats.ContainerStats{
				Name: c.name, StartTime: metav1.NewTime(c.start), CPU: cpuStats(c.counter), Memory: memoryStats(c.counter),
			})
		}
		out.Pods = append(out.Pods, pod)
	}
	return out
}

func cpuStats(c counter) *stats.CPUStats {
	total := uint64(c.cpu)
	return &stats.CPUStats{Time: metav1.NewTime(c.last.time), UsageNanoCores: &c.last.nanocores, UsageCoreNanoSeconds: &total}
}

func memoryStats(c counter) *stats.MemoryStats {
	return &stats.MemoryStats{Time: metav1.NewTime(c.last.time), WorkingSetBytes: &c.last.memory}
}
