package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/plan"
)

// fewObjects is an API server that lists and watches a few objects, and counts what it
// is asked for.
type fewObjects struct {
	t      *testing.T
	lists  map[string]runtime.Object         // by resource
	events map[string]chan metav1.WatchEvent // by resource

	mu       sync.Mutex
	requests map[string]int
}

func (s *fewObjects) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	resource := req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]
	watch := req.URL.Query().Get("watch") != ""
	kind := map[bool]string{false: "list", true: "watch"}[watch]
	list, known := s.lists[resource]
	switch {
	case !known:
		kind, resource = "get", req.URL.Path
	case req.URL.Query().Get("sendInitialEvents") != "":
		kind = "refused watch"
	}
	s.mu.Lock()
	s.requests[kind+" "+resource]++
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch kind {
	case "list":
		_ = json.NewEncoder(w).Encode(list)
	case "watch":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for {
			select {
			case <-req.Context().Done():
				return
			case e := <-s.events[resource]:
				_ = json.NewEncoder(w).Encode(e)
				w.(http.Flusher).Flush()
			}
		}
	default: // a watch that lists first, which servers may refuse, or one object
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
	}
}

func (s *fewObjects) asked() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.requests)
}

// sets counts the desired states that a fabric gets.
type sets struct {
	mu   sync.Mutex
	last plan.Desired
	n    int
}

func (s *sets) Set(d plan.Desired) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = d
	s.n++
}
func (*sets) Status() tunnel.Status    { return tunnel.Status{} }
func (*sets) Changed() <-chan struct{} { return nil }
func (s *sets) seen() (plan.Desired, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.n
}

// What the other nodes report costs a node no request, however many they are, and no
// work unless it matters to its fabric.
func TestReportsOfOtherNodesCostANodeNoRequest(t *testing.T) {
	t.Parallel()
	own := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}}
	own.Spec.PodCIDRs = []string{"10.200.0.0/24"}
	first, other := fabricNode("a", "me", keyA, true), fabricNode("b", "me", keyB, false)
	first.Status.PodCIDRs, other.ResourceVersion = own.Spec.PodCIDRs, "1"
	at := metav1.ListMeta{ResourceVersion: "1"}
	group := v1alpha1.GroupVersion.String()
	server := &fewObjects{t: t, requests: map[string]int{}, events: map[string]chan metav1.WatchEvent{"fabricnodes": make(chan metav1.WatchEvent)}, lists: map[string]runtime.Object{
		"nodes":       &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: at, Items: []corev1.Node{*own}},
		"secrets":     &corev1.SecretList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}, ListMeta: at},
		"tunnels":     &v1alpha1.TunnelList{TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "TunnelList"}, ListMeta: at},
		"fabricnodes": &v1alpha1.FabricNodeList{TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "FabricNodeList"}, ListMeta: at, Items: []v1alpha1.FabricNode{first, other}},
	}}
	https := httptest.NewServer(server)
	defer https.Close()
	cfg := Config{Node: "a", Namespace: "entente-system", HealthAddress: "0", Log: slog.New(slog.DiscardHandler)}
	mgr, err := ctrl.NewManager(&rest.Config{Host: https.URL, QPS: -1}, nodeOptions(cfg))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	defer done.Wait()
	defer cancel()
	fabric := &sets{}
	n := &node{cfg: cfg, fabric: fabric, inBand: idleRelays(t), client: mgr.GetClient()}
	done.Go(func() { _ = mgr.Start(ctx) })
	done.Go(func() { _ = n.follow(ctx, mgr.GetCache()) })
	settled := func(what string, is func(plan.Desired, int) bool) {
		t.Helper()
		if !waittest.Soon(func() bool { return is(fabric.seen()) }) {
			d, n := fabric.seen()
			t.Fatalf("%s: the fabric was set %d times, last %+v; requests %v", what, n, d, server.asked())
		}
	}
	settled("at first", func(d plan.Desired, _ int) bool { return len(d.Nodes) == 2 })
	before := -1
	settled("the watches began", func(_ plan.Desired, n int) bool {
		last := before
		before = n
		time.Sleep(50 * time.Millisecond)
		return n == last
	})
	const reports = 200
	version := 1
	report := func(change func(*v1alpha1.FabricNode)) {
		version++
		now := other.DeepCopy()
		now.TypeMeta = metav1.TypeMeta{APIVersion: group, Kind: "FabricNode"}
		now.ResourceVersion = fmt.Sprint(version)
		now.Status.ObservedAt = metav1.NewTime(time.Unix(1e9+int64(version), 0))
		if change != nil {
			change(now)
		}
		raw, err := json.Marshal(now)
		if err != nil {
			t.Fatal(err)
		}
		server.events["fabricnodes"] <- metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: raw}}
	}
	for range reports {
		report(nil)
	}
	report(func(n *v1alpha1.FabricNode) { n.Status.PodCIDRs = []string{"10.200.9.0/24"} })
	settled("another prefix", func(d plan.Desired, _ int) bool { return d.Nodes[1].PodCIDRs[0].String() == "10.200.9.0/24" })
	if _, after := fabric.seen(); after-before > 2 { // the change, and perhaps the resync each 10 s
		t.Errorf("after %d reports the fabric was set %d times", reports, after-before)
	}
	for what, times := range server.asked() {
		if strings.HasPrefix(what, "get ") || times > 2 {
			t.Errorf("%d times %s, want one list and one watch of each kind", times, what)
		}
	}
	t.Logf("requests for %d reports: %v", reports, server.asked())
}
