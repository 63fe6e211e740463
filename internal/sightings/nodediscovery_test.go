package sightings

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
)

// discoveryOf is a NodeDiscovery that was made some time ago and whose fabric has
// listened for some time; less than 0 is that it does not.
func discoveryOf(name string, spec v1alpha1.NodeDiscoverySpec, now time.Time, age, listened time.Duration) v1alpha1.NodeDiscovery {
	nd := v1alpha1.NodeDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now.Add(-age))}, Spec: spec}
	if listened >= 0 {
		nd.Status.ObservedAt, nd.Status.Since = metav1.NewTime(now), new(metav1.NewTime(now.Add(-listened)))
	}
	return nd
}

func TestWhichNodesDiscover(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	spec, old := v1alpha1.NodeDiscoverySpec{Interfaces: []string{"eth0"}}, v1alpha1.NodeDiscoverySpec{Interfaces: []string{"eth1"}}
	gone := discoveryOf("a", spec, now, time.Hour, time.Hour)
	gone.DeletionTimestamp = new(metav1.NewTime(now))
	have := func(list ...v1alpha1.NodeDiscovery) []v1alpha1.NodeDiscovery { return list }
	for name, tt := range map[string]struct {
		off     bool
		gateway string
		have    []v1alpha1.NodeDiscovery
		want    string
	}{
		"the gateway begins":                {gateway: "a", want: "+a"},
		"nothing changed":                   {gateway: "a", have: have(discoveryOf("a", spec, now, time.Hour, time.Hour))},
		"what to publish changed":           {gateway: "a", have: have(discoveryOf("a", old, now, time.Hour, time.Hour)), want: "~a"},
		"off, and there is no object":       {off: true, gateway: "a"},
		"off":                               {off: true, gateway: "a", have: have(discoveryOf("a", spec, now, time.Hour, time.Hour), discoveryOf("b", spec, now, time.Hour, -1)), want: "-a -b"},
		"no gateway, and there was one":     {have: have(discoveryOf("a", spec, now, time.Hour, time.Hour))},
		"another is the gateway":            {gateway: "b", have: have(discoveryOf("a", spec, now, time.Hour, time.Hour)), want: "+b"},
		"the other did not report":          {gateway: "b", have: have(discoveryOf("a", spec, now, time.Hour, time.Hour), discoveryOf("b", spec, now, time.Second, -1))},
		"the other has just begun":          {gateway: "b", have: have(discoveryOf("a", spec, now, time.Hour, time.Hour), discoveryOf("b", spec, now, time.Second, LANConvergence-time.Second))},
		"both change while both are there":  {gateway: "b", have: have(discoveryOf("a", old, now, time.Hour, time.Hour), discoveryOf("b", old, now, time.Second, 0)), want: "~a ~b"},
		"the other has converged":           {gateway: "b", have: have(discoveryOf("a", spec, now, time.Hour, time.Hour), discoveryOf("b", spec, now, time.Second, LANConvergence)), want: "-a"},
		"the other never reports":           {gateway: "b", have: have(discoveryOf("a", spec, now, time.Hour, time.Hour), discoveryOf("b", spec, now, lanHandover, -1)), want: "-a"},
		"one that is deleted is left alone": {off: true, have: have(gone)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := &spec
			if tt.off {
				want = nil
			}
			nodes := []v1alpha1.FabricNode{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b"}}, {ObjectMeta: metav1.ObjectMeta{Name: "c"}}}
			for i := range nodes {
				nodes[i].Spec.Gateway = nodes[i].Name == tt.gateway
			}
			plan := planNodeDiscoveries(want, nodes, tt.have, now)
			var got []string
			for _, name := range plan.create {
				got = append(got, "+"+name)
			}
			for _, nd := range plan.change {
				got = append(got, "~"+nd.Name)
			}
			for _, nd := range plan.remove {
				got = append(got, "-"+nd.Name)
			}
			if got := strings.Join(got, " "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestOneGatewayListens(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	node := func(name string, age time.Duration, loses ...string) v1alpha1.FabricNode {
		n := v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.FabricNodeSpec{ClusterID: "self", Gateway: true}}
		n.Status.ObservedAt = metav1.NewTime(now.Add(-age))
		for _, other := range loses {
			n.Status.Paths = append(n.Status.Paths, v1alpha1.FabricPath{PeerID: "self", Node: other, State: "Down"})
		}
		return n
	}
	type nodes = []v1alpha1.FabricNode
	for name, tt := range map[string]struct {
		nodes nodes
		have  string
		want  string
	}{
		"no node":                               {},
		"the first by name":                     {nodes: nodes{node("b", 0), node("a", 0)}, want: "a"},
		"the one that listens":                  {nodes: nodes{node("a", 0), node("b", 0)}, have: "b", want: "b"},
		"not one that fell silent":              {nodes: nodes{node("a", 0), node("b", lanFresh)}, have: "b", want: "a"},
		"not one that others lose":              {nodes: nodes{node("a", 0, "b"), node("b", 0)}, have: "b", want: "a"},
		"reports of a silent node do not count": {nodes: nodes{node("a", time.Hour, "b"), node("b", 0)}, have: "b", want: "b"},
		"one that is dead, if all are":          {nodes: nodes{node("a", time.Hour)}, want: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := listener(tt.nodes, map[string]*v1alpha1.NodeDiscovery{tt.have: {}}, now); got != tt.want {
				t.Errorf("%q listens, want %q", got, tt.want)
			}
		})
	}
}

// Objects are written when something changed only, and not at all while it is not known
// what to publish.
func TestNodeDiscoveriesAreKept(t *testing.T) {
	t.Parallel()
	gateway := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.FabricNodeSpec{Gateway: true}}
	c := fake.NewClientBuilder().WithScheme(peertest.Scheme(t)).WithObjects(gateway).WithStatusSubresource(&v1alpha1.NodeDiscovery{}).Build()
	spec, failing := &v1alpha1.NodeDiscoverySpec{Interfaces: []string{"eth0"}}, error(nil)
	r := &NodeDiscoveries{Client: c, Now: time.Now, Desired: func(context.Context) (*v1alpha1.NodeDiscoverySpec, error) { return spec, failing }}
	reconcile := func() string {
		t.Helper()
		result, err := r.Reconcile(t.Context(), reconcile.Request{})
		if (err != nil) != (failing != nil) {
			t.Fatal(err)
		}
		if err == nil && (result.RequeueAfter > 0) != (spec != nil) {
			t.Errorf("requeued after %s", result.RequeueAfter)
		}
		var list v1alpha1.NodeDiscoveryList
		if err := c.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, nd := range list.Items {
			out = append(out, fmt.Sprint(nd.Name, nd.Spec.Interfaces, nd.Labels[v1alpha1.LabelManaged], " ", nd.ResourceVersion))
		}
		return strings.Join(out, " ")
	}
	if got := reconcile(); got != "a[eth0]entente 1" {
		t.Errorf("at first there is %q", got)
	}
	if got := reconcile(); got != "a[eth0]entente 1" {
		t.Errorf("when nothing changed there is %q", got)
	}
	spec = &v1alpha1.NodeDiscoverySpec{Interfaces: []string{"eth1"}}
	if got := reconcile(); got != "a[eth1]entente 2" {
		t.Errorf("after a change there is %q", got)
	}
	spec, failing = nil, errors.New("the cache is not there")
	if got := reconcile(); got != "a[eth1]entente 2" {
		t.Errorf("while it is not known what to publish there is %q", got)
	}
	if failing = nil; reconcile() != "" {
		t.Error("it stays when discovery is off")
	}
}
