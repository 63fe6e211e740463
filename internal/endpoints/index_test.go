package endpoints

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/peering"
)

// The index finds the same as a search of all Services, whatever came and went.
func TestTheIndexFindsTheServicesOfAPod(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var x Index
	have := map[types.NamespacedName]peering.ServiceObject{}
	name := func() types.NamespacedName {
		return types.NamespacedName{Namespace: fmt.Sprint("ns-", r.IntN(2)), Name: fmt.Sprint("svc-", r.IntN(6))}
	}
	for step := range 3000 {
		if s := name(); r.IntN(4) == 0 {
			x.Drop(s)
			delete(have, s)
		} else {
			var in peering.ServiceObject
			if r.IntN(5) == 0 {
				in.SetName = "db"
			}
			for range r.IntN(5) {
				in.Endpoints = append(in.Endpoints, peering.ServiceEndpoint{Address: fmt.Sprint(r.IntN(9)), PodUID: []string{"", "a", "b", "c"}[r.IntN(4)]})
			}
			x.Set(s, in)
			have[s] = in
		}
		for _, namespace := range []string{"ns-0", "ns-1", "none"} {
			for _, pod := range []string{"a", "b", "c", "d"} {
				var want []types.NamespacedName
				for s, in := range have {
					if s.Namespace == namespace && (in.SetName != "" || slices.ContainsFunc(in.Endpoints, func(e peering.ServiceEndpoint) bool { return e.PodUID == pod })) {
						want = append(want, s)
					}
				}
				got := x.Of(namespace, pod)
				for _, list := range [][]types.NamespacedName{want, got} {
					slices.SortFunc(list, func(a, b types.NamespacedName) int { return strings.Compare(a.Name, b.Name) })
				}
				if !slices.Equal(got, want) {
					t.Fatalf("step %d, pod %s in %s (-want +got)\n%s", step, pod, namespace, cmp.Diff(want, got))
				}
			}
		}
	}
	for s := range have {
		x.Drop(s)
	}
	if n := len(x.services) + len(x.pods) + len(x.all); n > 0 {
		t.Errorf("%d entries are left of Services that went", n)
	}
}
