package podmetrics

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/peering"
)

// rooms is a source with measurements by namespace and contract, that counts its calls.
type rooms struct {
	mu    sync.Mutex
	has   map[string]map[string]peering.PodMetrics
	err   error
	reads []string
	block chan struct{}
}

func (r *rooms) Measure(ctx context.Context, namespace, contract string) (map[string]peering.PodMetrics, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads = append(r.reads, namespace+" "+contract)
	if r.block != nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return r.has[namespace], r.err
}

func used(at time.Time) peering.PodMetrics {
	return peering.PodMetrics{Time: at, Window: 15 * time.Second, Containers: []peering.ContainerMetrics{{Name: "c", Nanocores: 5, Memory: 6}}}
}

func newTestProvider(t *testing.T, source Source, pods map[string][]Pod) *Provider {
	t.Helper()
	p, err := NewProvider(ProviderConfig{Source: source, Pods: func(_ context.Context, contract string) ([]Pod, error) { return pods[contract], nil }})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAConsumerGetsItsOwnPodsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		source := &rooms{has: map[string]map[string]peering.PodMetrics{
			"shop-a": {"web": used(now), "old": used(now.Add(-time.Hour)), "strange": used(now)},
			"shop-b": {"web": used(now)},
		}}
		p := newTestProvider(t, source, map[string][]Pod{
			"c-1": {
				{UID: "u-1", Namespace: "shop-a", Name: "web", Started: now.Add(-time.Minute), Containers: []string{"c"}},
				// It has the name of a pod that was there before.
				{UID: "u-2", Namespace: "shop-a", Name: "old", Started: now.Add(-time.Minute), Containers: []string{"c"}},
				{UID: "u-3", Namespace: "shop-a", Name: "unmeasured", Started: now.Add(-time.Minute), Containers: []string{"c"}},
			},
			"c-2": {{UID: "u-4", Namespace: "shop-b", Name: "web", Started: now.Add(-time.Minute), Containers: []string{"c"}}},
		})
		got, err := p.PodMetrics(t.Context(), "c-1")
		if err != nil {
			t.Fatal(err)
		}
		want := used(now)
		want.UID = "u-1"
		if d := cmp.Diff(peering.ContractMetrics{Time: now, Pods: []peering.PodMetrics{want}}, got); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff([]string{"shop-a c-1"}, source.reads); d != "" {
			t.Error(d)
		}
	})
}

// What a provider's cluster adds to a pod is not the consumer's to measure.
func TestContainersThatTheConsumerDidNotSendAreNotMeasured(t *testing.T) {
	t.Parallel()
	now := time.Now()
	with := func(names ...string) (m peering.PodMetrics) {
		m.Time = now
		for _, name := range names {
			m.Containers = append(m.Containers, peering.ContainerMetrics{Name: name, Nanocores: 1})
		}
		return m
	}
	found := map[string]peering.PodMetrics{"web": with("mesh", "c", "mesh-2"), "added": with("mesh")}
	got := attribute([]Pod{{UID: "u-1", Name: "web", Containers: []string{"c"}}, {UID: "u-2", Name: "added", Containers: []string{"c"}}}, found)
	want := with("c")
	want.UID = "u-1"
	if d := cmp.Diff([]peering.PodMetrics{want}, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(with("mesh", "c", "mesh-2"), found["web"]); d != "" {
		t.Error("the measurement was changed", d)
	}
}

func TestTheClusterIsReadNoMoreOftenForBeingAskedMoreOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &rooms{}
		p := newTestProvider(t, source, map[string][]Pod{"c-1": {{UID: "u", Namespace: "shop", Name: "web"}}})
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if _, err := p.PodMetrics(t.Context(), "c-1"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(source.reads) != 1 {
			t.Errorf("it was read %d times, want once", len(source.reads))
		}
		time.Sleep(measureEvery)
		if _, err := p.PodMetrics(t.Context(), "c-1"); err != nil || len(source.reads) != 2 {
			t.Errorf("a little later it was read %d times, want 2: %v", len(source.reads), err)
		}
		source.err = peering.Errorf(peering.ReasonMetricsUnavailable, "none")
		time.Sleep(measureEvery)
		for range 5 {
			if _, err := p.PodMetrics(t.Context(), "c-1"); err == nil {
				t.Error("without a metrics API, there is a result")
			}
			time.Sleep(measureEvery)
		}
		if len(source.reads) != 3 {
			t.Errorf("the missing API was read %d times, want once", len(source.reads)-2)
		}
	})
}

func TestACallerThatGoesSaysNothingToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &rooms{block: make(chan struct{})}
		p := newTestProvider(t, source, map[string][]Pod{"c-1": {{UID: "u", Namespace: "shop", Name: "web"}}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.PodMetrics(ctx, "c-1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller got %v", err)
		}
		source.block = nil
		if _, err := p.PodMetrics(t.Context(), "c-1"); err != nil {
			t.Errorf("the next one got %v", err)
		}
	})
}

// served is a list as metrics-server v0.9 serves it.
const served = `{"kind":"PodMetricsList","apiVersion":"metrics.k8s.io/v1beta1","metadata":{},"items":[
{"metadata":{"name":"web","namespace":"shop-a","creationTimestamp":"2026-05-01T12:00:05Z","labels":{"entente.dev/contract":"c-1"}},
 "timestamp":"2026-05-01T12:00:00Z","window":"15.071s","containers":[
  {"name":"web","usage":{"cpu":"12345678n","memory":"9220Ki"}},{"name":"side","usage":{"cpu":"0","memory":"1Mi"}}]},
{"metadata":{"name":"half"},"timestamp":"2026-05-01T12:00:00Z","window":"0s","containers":[]}]}`

func api(t *testing.T, h http.HandlerFunc) MetricsAPI {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	return MetricsAPI{REST: c.Discovery().RESTClient(), Label: "entente.dev/contract"}
}

func TestMetricsAPIIsListedByNamespaceAndContract(t *testing.T) {
	t.Parallel()
	got, err := api(t, func(w http.ResponseWriter, r *http.Request) {
		if want := "/apis/metrics.k8s.io/v1beta1/namespaces/shop-a/pods?labelSelector=entente.dev%2Fcontract%3Dc-1"; r.URL.String() != want {
			t.Errorf("asked for %s, want %s", r.URL, want)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(served))
	}).Measure(t.Context(), "shop-a", "c-1")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]peering.PodMetrics{"web": {
		Time: noon, Window: 15071 * time.Millisecond,
		Containers: []peering.ContainerMetrics{{Name: "web", Nanocores: 12345678, Memory: 9220 << 10}, {Name: "side", Memory: 1 << 20}},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestMetricsAPIThatIsNotThere(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		code        int
		body        string
		unavailable bool
	}{
		"it is not installed":         {404, "404 page not found", true},
		"its server does not answer":  {503, "service unavailable", true},
		"the agent has not the right": {403, "forbidden", true},
		"something is wrong":          {500, "oops", false},
		"the answer is not a list":    {200, "[]", false},
		"the answer is too long":      {200, `{"items":[` + strings.Repeat(" ", maxListBytes) + "]}", false},
		"a malformed amount":          {200, `{"items":[{"metadata":{"name":"a"},"containers":[{"name":"c","usage":{"cpu":"many"}}]}]}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := api(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.code)
				_, _ = w.Write([]byte(test.body))
			}).Measure(t.Context(), "shop-a", "c-1")
			own, ok := errors.AsType[*peering.Error](err)
			if err == nil || ok != test.unavailable || ok && own.Reason != peering.ReasonMetricsUnavailable {
				t.Errorf("got %v", err)
			}
		})
	}
}

// FuzzReadList reads whatever serves metrics.k8s.io.
func FuzzReadList(f *testing.F) {
	f.Add([]byte(served))
	f.Add([]byte(`{"items":[{"metadata":{"name":"a"},"window":"1s","containers":[{"name":"c","usage":{"cpu":"-1","memory":"1e99"}}]}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		found, err := readList(raw)
		for name, m := range found {
			if err != nil || name == "" || m.Window <= 0 || len(m.Containers) == 0 {
				t.Errorf("%q is %+v, %v", name, m, err)
			}
		}
	})
}
