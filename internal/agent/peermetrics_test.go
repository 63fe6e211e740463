package agent

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
)

func TestMetricsShowTrustedPeersAndThePool(t *testing.T) {
	t.Parallel()
	peer := func(name, id string, conditions ...metav1.Condition) *v1alpha1.ForeignCluster {
		fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: id}}
		fc.Status.Conditions = conditions
		return fc
	}
	is := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason}
	}
	trusted := is(v1alpha1.ConditionTrusted, metav1.ConditionTrue, "Joined")
	good := peer("good", "good-id", trusted, is(v1alpha1.ConditionConnected, metav1.ConditionTrue, "Up"), is(v1alpha1.ConditionNetwork, metav1.ConditionFalse, v1alpha1.ReasonNodesCutOff), is(v1alpha1.ConditionOffloading, metav1.ConditionUnknown, "Starting"))
	good.Status.Aliases = []v1alpha1.PrefixAlias{{Prefix: "10.0.0.0/24", Alias: "198.18.1.0/24"}, {Prefix: "fd00::/64", Alias: "fdd7:585b:e300::/64"}}
	good.Status.AliasBlocks = []v1alpha1.AliasBlock{{Alias: "198.18.2.0/26"}}
	good.Status.PresharedKey = &v1alpha1.PresharedKeyStatus{Since: metav1.NewTime(time.Unix(1000, 0))}
	idle := peer("idle", "idle-id", trusted, is(v1alpha1.ConditionConnected, metav1.ConditionFalse, "Refused"),
		is(v1alpha1.ConditionNetwork, metav1.ConditionFalse, v1alpha1.ReasonTunnelNotRequired), is(v1alpha1.ConditionOffloading, metav1.ConditionFalse, v1alpha1.ReasonNoContract))
	found := peer("found", "found-id", is(v1alpha1.ConditionTrusted, metav1.ConditionFalse, "Found"), is(v1alpha1.ConditionConnected, metav1.ConditionFalse, "NotTrusted"))
	twice := peer("twice", "good-id", trusted)
	c := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(good, idle, found, twice).Build()
	m := newPeerMetrics(c, []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.18.7.0/24"), netip.MustParsePrefix("fdd7:585b:e300::/40")}, 0)
	const want = `# HELP entente_alias_pool_addresses How many addresses the alias pool has.
# TYPE entente_alias_pool_addresses gauge
entente_alias_pool_addresses{family="IPv4"} 131072
entente_alias_pool_addresses{family="IPv6"} 3.0948500982134507e+26
# HELP entente_alias_pool_used_addresses How many of them are assigned to peers.
# TYPE entente_alias_pool_used_addresses gauge
entente_alias_pool_used_addresses{family="IPv4"} 320
entente_alias_pool_used_addresses{family="IPv6"} 1.8446744073709552e+19
# HELP entente_peer_condition Whether a condition of a trusted cluster is true; absent while that is unknown, or the condition does not apply.
# TYPE entente_peer_condition gauge
entente_peer_condition{peer="good-id",type="Connected"} 1
entente_peer_condition{peer="good-id",type="Network"} 0
entente_peer_condition{peer="good-id",type="Trusted"} 1
entente_peer_condition{peer="idle-id",type="Connected"} 0
entente_peer_condition{peer="idle-id",type="Trusted"} 1
# HELP entente_peer_nodes_cut_off Whether pods on some nodes do not reach a trusted cluster, and those on others do; absent while no tunnel is wanted.
# TYPE entente_peer_nodes_cut_off gauge
entente_peer_nodes_cut_off{peer="good-id"} 1
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	m.keyEvery = 100 * time.Hour
	if n := testutil.CollectAndCount(m, "entente_preshared_key_due_seconds"); n != 1 {
		t.Errorf("%d keys are due once, want 1", n)
	}
}
