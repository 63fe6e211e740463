package podmetrics

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/peering"
)

func homePod(name, uid string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)}}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c})
	}
	return p
}

// far is a provider whose pods use cores cores each; its clock is an hour ahead.
type far struct {
	asked int
	err   error
	cores map[string]float64 // by UID and container
}

const ahead = time.Hour

func (f *far) ask(context.Context) (peering.ContractMetrics, error) {
	f.asked++
	there := time.Now().Add(ahead)
	out := peering.ContractMetrics{Time: there}
	for who, cores := range f.cores {
		uid, name, _ := strings.Cut(who, "/")
		out.Pods = append(out.Pods, peering.PodMetrics{
			UID: uid, Time: there.Add(-3 * time.Second), Window: 15 * time.Second,
			Containers: []peering.ContainerMetrics{{Name: name, Nanocores: uint64(cores * 1e9), Memory: 1 << 20}},
		})
	}
	return out, f.err
}

// values is the samples of metrics by name and labels, and when they were taken.
func values(t *testing.T, list []*dto.MetricFamily) (value map[string]float64, at map[string]time.Time) {
	t.Helper()
	value, at = map[string]float64{}, map[string]time.Time{}
	for _, f := range list {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			if _, twice := value[key]; twice {
				t.Errorf("%s is there twice", key)
			}
			value[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			at[key] = time.UnixMilli(m.GetTimestampMs())
		}
	}
	return value, at
}

func scrape(t *testing.T, h *Home, nodes map[string][]*corev1.Pod) (map[string]float64, map[string]time.Time) {
	t.Helper()
	list, err := h.Resource(t.Context(), nodes)
	if err != nil {
		t.Fatal(err)
	}
	return values(t, list)
}

func TestTwoScrapesGiveWhatThePodsUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		provider := &far{cores: map[string]float64{"u-1/web": 0.25, "u-2/web": 0, "u-9/other": 64}}
		h := NewHome(HomeConfig{})
		h.Add("office", provider.ask)
		pods := map[string][]*corev1.Pod{"office": {homePod("web-1", "u-1", "web"), homePod("web-2", "u-2", "web"), homePod("new", "u-3", "web")}}
		first, firstAt := scrape(t, h, pods)
		time.Sleep(15 * time.Second)
		provider.cores["u-1/web"] = 0.75
		second, at := scrape(t, h, pods)
		for key, want := range map[string]float64{
			"container_cpu_usage_seconds_total web shop web-1": 0.75, "container_cpu_usage_seconds_total web shop web-2": 0,
			"pod_cpu_usage_seconds_total shop web-1": 0.75, "node_cpu_usage_seconds_total": 0.75,
		} {
			got := (second[key] - first[key]) / at[key].Sub(firstAt[key]).Seconds()
			if math.Abs(got-want) > 1e-6 || second[key] == 0 {
				t.Errorf("%s: two scrapes give %g cores, want %g", key, got, want)
			}
		}
		if key := "container_cpu_usage_seconds_total web shop web-1"; time.Since(at[key]).Round(time.Millisecond) != 3*time.Second {
			t.Errorf("by this cluster's clock it was measured %s ago, want 3 s", time.Since(at[key]))
		}
		if second["container_memory_working_set_bytes web shop web-2"] != 1<<20 || second["node_memory_working_set_bytes"] != 2<<20 || second["resource_scrape_error"] != 0 {
			t.Errorf("memory is %v", second)
		}
		if start := second["container_start_time_seconds web shop web-1"]; start >= float64(firstAt["container_cpu_usage_seconds_total web shop web-1"].UnixMilli())/1e3 {
			t.Errorf("the counter began at %f, after its first sample", start)
		}
		for key := range second {
			if strings.Contains(key, "other") || strings.Contains(key, "new") {
				t.Errorf("there is %s, of a pod that this cluster does not have or that was not measured", key)
			}
		}
	})
}

func TestAProviderIsAskedAtALimitedRateAndForgottenLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		provider := &far{cores: map[string]float64{"u-1/web": 1}}
		h := NewHome(HomeConfig{})
		h.Add("office", provider.ask)
		pods := map[string][]*corev1.Pod{"office": {homePod("web", "u-1", "web")}}
		const key = "container_cpu_usage_seconds_total web shop web"
		for range 50 {
			scrape(t, h, pods)
		}
		if provider.asked != 1 {
			t.Errorf("it was asked %d times at once", provider.asked)
		}
		provider.err = errors.New("away")
		time.Sleep(time.Minute)
		got, at := scrape(t, h, pods)
		if got[key] == 0 || time.Since(at[key]) < time.Minute || got["resource_scrape_error"] != 1 {
			t.Errorf("a minute after the provider was lost: %v at %v", got, at)
		}
		time.Sleep(maxAge)
		if got, _ := scrape(t, h, pods); len(got) != 1 || got["resource_scrape_error"] != 1 {
			t.Errorf("long after the provider was lost: %v", got)
		}
		provider.err = nil
		time.Sleep(askEvery)
		if got, _ := scrape(t, h, pods); got[key] == 0 || got["resource_scrape_error"] != 0 {
			t.Errorf("when it is back: %v", got)
		}
	})
}

func TestACounterNeverFalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		provider := &far{cores: map[string]float64{"u-1/init": 1, "u-2/web": 1}}
		h := NewHome(HomeConfig{})
		h.Add("office", provider.ask)
		one := homePod("one", "u-1", "web")
		one.Spec.InitContainers = []corev1.Container{{Name: "init"}}
		pods := map[string][]*corev1.Pod{"office": {one, homePod("two", "u-2", "web")}}
		before, _ := scrape(t, h, pods)
		// The init container ends, and later the other pod.
		delete(provider.cores, "u-1/init")
		provider.cores["u-1/web"] = 0.1
		for i := range 40 {
			time.Sleep(15 * time.Second)
			if i == 20 {
				pods["office"] = pods["office"][:1]
				delete(provider.cores, "u-2/web")
			}
			now, _ := scrape(t, h, pods)
			for _, key := range []string{"pod_cpu_usage_seconds_total shop one", "node_cpu_usage_seconds_total"} {
				if now[key] < before[key] {
					t.Errorf("scrape %d: %s fell from %f to %f", i, key, before[key], now[key])
				}
			}
			before = now
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if n := len(h.nodes["office"].counters); n != 2 {
			t.Errorf("it keeps %d counters, want those of one pod's 2 containers", n)
		}
	})
}

func TestSeveralNodesHaveNoTotal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := NewHome(HomeConfig{})
		a, b := &far{cores: map[string]float64{"u-1/web": 1}}, &far{cores: map[string]float64{"u-2/web": 2}}
		h.Add("a", a.ask)
		h.Add("b", b.ask)
		pods := map[string][]*corev1.Pod{"a": {homePod("one", "u-1", "web")}, "b": {homePod("two", "u-2", "web")}}
		got, _ := scrape(t, h, pods)
		if _, there := got["node_cpu_usage_seconds_total"]; there || len(got) != 11 {
			t.Errorf("of two nodes there is %v", got)
		}
		h.Remove("b")
		if got, _ := scrape(t, h, pods); got["resource_scrape_error"] != 1 {
			t.Errorf("of a node that is gone there is %v", got)
		}
	})
}

func TestSummaryIsWhatAKubeletHas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := NewHome(HomeConfig{})
		provider := &far{cores: map[string]float64{"u-1/web": 0.5}}
		h.Add("office", provider.ask)
		got, err := h.Summary(t.Context(), "office", []*corev1.Pod{homePod("web", "u-1", "web")})
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprint(got.Node.NodeName, " ", *got.Node.CPU.UsageNanoCores, " ", *got.Node.Memory.WorkingSetBytes)
		for _, p := range got.Pods {
			text += fmt.Sprint("; ", p.PodRef, " ", *p.CPU.UsageNanoCores, " ", *p.Memory.WorkingSetBytes)
			for _, c := range p.Containers {
				text += fmt.Sprint(" ", c.Name, " ", *c.CPU.UsageNanoCores, " ", *c.CPU.UsageCoreNanoSeconds/1e6, " ", time.Since(c.CPU.Time.Time))
			}
		}
		if d := cmp.Diff("office 500000000 1048576; {web shop u-1} 500000000 1048576 web 500000000 7500 3s", text); d != "" {
			t.Error(d)
		}
	})
}
