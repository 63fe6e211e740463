package agent

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/offload"
)

// What a provider opens to pods in another cluster is what it runs for their home, in the families of which it knows
// all sources, until the contract is over.
func TestAProviderOpensOnlyPodsThatItRunsForTheirHome(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	c := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: "contract"}}
	c.Spec.NotAfter = metav1.NewTime(time.Unix(2e9, 0))
	home := &v1alpha1.ForeignCluster{Spec: v1alpha1.ForeignClusterSpec{ClusterID: "home"}}
	served := []offload.Served{{Addr: addr("10.0.0.9"), Protocol: "TCP", Port: 80}, {Addr: addr("fd00::9"), Protocol: "UDP", Port: 53}}
	for what, tc := range map[string]struct {
		from   map[bool][]netip.Addr
		served []offload.Served
		want   string
	}{
		"both families":     {map[bool][]netip.Addr{true: {addr("198.18.0.1")}, false: {addr("fd01::1")}}, served, "[{10.0.0.9 {TCP 80}} {fd00::9 {UDP 53}}]"},
		"one family":        {map[bool][]netip.Addr{true: {addr("198.18.0.1")}}, served, "[{10.0.0.9 {TCP 80}}]"},
		"no source":         {nil, served, "[]"},
		"no pod runs there": {map[bool][]netip.Addr{true: {addr("198.18.0.1")}}, nil, "[]"},
	} {
		got := opensDirectly(c, home, tc.from, "shop", tc.served)
		if fmt.Sprint(got.To) != tc.want || len(got.From) != len(tc.from) || got.AnySource || got.Home != "home" || got.Contract != "contract" || !got.Until.After(c.Spec.NotAfter.Time) {
			t.Errorf("%s: %+v, want %s", what, got, tc.want)
		}
		open, _ := allow.Plan([]allow.Exposed{got}, nil)
		if (len(open) > 0) != (tc.want != "[]") {
			t.Errorf("%s: a tunnel opens %+v", what, open)
		}
	}
}
