package admin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(epoch.Add(-time.Minute))}
}

func TestEventsAreDerivedFromTwoStates(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a", 32)
	peer := func(f func(*v1alpha1.ForeignCluster)) *v1alpha1.ForeignCluster {
		fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: id}}
		fc.Status.Conditions = []metav1.Condition{condition("Connected", "True", "SessionUp", "up")}
		f(fc)
		return fc
	}
	same := func(*v1alpha1.ForeignCluster) {}
	request := func(to string, conditions ...metav1.Condition) *v1alpha1.PeeringRequest {
		return &v1alpha1.PeeringRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "batch"}, Spec: v1alpha1.PeeringRequestSpec{ForeignCluster: to},
			Status: v1alpha1.PeeringRequestStatus{Conditions: conditions},
		}
	}
	contract := func(revision int64, phase, message string) *v1alpha1.Contract {
		c := contractObject("k1", "office", id, v1alpha1.ContractConsumer, phase, 0)
		c.Spec.Revision, c.Status.Message, c.Spec.NotAfter = revision, message, metav1.NewTime(epoch.Add(time.Hour))
		return c
	}
	type fcs = *v1alpha1.ForeignCluster
	for name, tc := range map[string]struct {
		before, after any
		want          []string
	}{
		"a peer is known":     {fcs(nil), peer(same), []string{"office|peers/office|Known|cluster " + id + " is known", "office|peers/office|SessionUp|Connected is True: up"}},
		"nothing":             {peer(same), peer(same), nil},
		"a peer is forgotten": {peer(same), fcs(nil), []string{"office|peers/office|Forgotten|cluster " + id + " is not known any more"}},
		"a condition turns": {
			peer(same), peer(func(fc fcs) {
				fc.Status.Conditions[0] = condition("Connected", "False", "NoSession", "refused")
			}),
			[]string{"office|peers/office|NoSession|Connected is False: refused"},
		},
		"a condition has another reason": {
			peer(same), peer(func(fc fcs) { fc.Status.Conditions[0].Reason = "Accepted" }),
			[]string{"office|peers/office|Accepted|Connected is True: up"},
		},
		"a condition has another message, which is not an event": {
			peer(same), peer(func(fc fcs) { fc.Status.Conditions[0].Message = "still" }), nil,
		},
		"a peer introduces itself": {
			peer(same), peer(func(fc fcs) { fc.Status.Introduction = &v1alpha1.Introduction{Code: "042917"} }),
			[]string{"office|peers/office|Introduced|the code to compare with the other side's is 042917"},
		},
		"the same introduction": {
			peer(func(fc fcs) { fc.Status.Introduction = &v1alpha1.Introduction{Code: "042917"} }),
			peer(func(fc fcs) { fc.Status.Introduction = &v1alpha1.Introduction{Code: "042917", Name: "x"} }), nil,
		},
		"a peer is denied": {
			peer(func(fc fcs) { fc.Spec.Decision = v1alpha1.DecisionApproved }), peer(func(fc fcs) { fc.Spec.Decision = v1alpha1.DecisionDenied }),
			[]string{"office|peers/office|Denied|an administrator decided: Denied"},
		},
		"a policy approves": {
			peer(same), peer(func(fc fcs) {
				fc.Spec.Decision = v1alpha1.DecisionApproved
				fc.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelAutomatic: "home"}
				fc.Annotations = map[string]string{v1alpha1.AnnotationAutomaticBy: "FirstUse"}
			}),
			[]string{"office|peers/office|Approved|the policy home decided: Approved"},
		},
		"a policy's peer is denied": {
			peer(same), peer(func(fc fcs) {
				fc.Spec.Decision = v1alpha1.DecisionDenied
				fc.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelAutomatic: "home"}
				fc.Annotations = map[string]string{v1alpha1.AnnotationAutomaticBy: "FirstUse"}
			}),
			[]string{"office|peers/office|Denied|an administrator decided: Denied"},
		},
		"a decision is taken back": {
			peer(func(fc fcs) { fc.Spec.Decision = v1alpha1.DecisionDenied }), peer(same),
			[]string{"office|peers/office|Undecided|the decision whether to trust it was taken back"},
		},
		"a request waits": {
			peer(func(fc fcs) { fc.Status.Requests = []v1alpha1.PendingRequest{{ID: "r1"}} }),
			peer(func(fc fcs) { fc.Status.Requests = []v1alpha1.PendingRequest{{ID: "r1"}, {ID: "r2"}} }),
			[]string{"office|peers/office/requests/r2|RequestPending|a request waits for an administrator to approve it"},
		},
		"a peering is asked for":          {(*v1alpha1.PeeringRequest)(nil), request("office"), []string{"office|peerings/batch|Created|peer office is asked"}},
		"a peering is asked for, anybody": {(*v1alpha1.PeeringRequest)(nil), request(""), []string{"|peerings/batch|Created|any peer is asked"}},
		"a peering is refused": {
			request("office"), request("office", condition("Accepted", "False", "POLICY_REFUSED", "no")),
			[]string{"office|peerings/batch|POLICY_REFUSED|Accepted is False: no"},
		},
		"a peering is deleted": {request("office"), (*v1alpha1.PeeringRequest)(nil), []string{"office|peerings/batch|Deleted|the peering is not asked for any more"}},
		"a contract is signed": {
			(*v1alpha1.Contract)(nil), contract(1, "", ""),
			[]string{"office|contracts/k1|Signed|signed by both, this cluster as Consumer, until 2026-03-01T13:00:00Z"},
		},
		"a contract begins":   {contract(1, "", ""), contract(1, "Active", ""), []string{"office|contracts/k1|Active|the contract is Active"}},
		"a contract drains":   {contract(1, "Active", ""), contract(1, "Draining", "the peer ended it"), []string{"office|contracts/k1|Draining|the peer ended it"}},
		"a contract is grown": {contract(1, "Active", ""), contract(2, "Active", ""), []string{"office|contracts/k1|Amended|revision 2 is signed by both, until 2026-03-01T13:00:00Z"}},
		"a contract is gone":  {contract(1, "Closed", ""), (*v1alpha1.Contract)(nil), []string{"office|contracts/k1|Removed|the contract is not kept any more"}},
		"another kind":        {&v1alpha1.Tunnel{}, &v1alpha1.Tunnel{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := tc.before, tc.after
			// As the handlers call it: what came or went is nil.
			if fmt.Sprint(before) == "<nil>" {
				before = nil
			}
			if fmt.Sprint(after) == "<nil>" {
				after = nil
			}
			var got []string
			for _, e := range happened(before, after, epoch) {
				got = append(got, strings.TrimPrefix(e.GetPeer(), "peers/")+"|"+e.GetSubject()+"|"+e.GetReason()+"|"+e.GetMessage())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	// A transition has the time that the condition says, all else the time at which
	// it was seen.
	turned := happened(peer(same), peer(func(fc fcs) { fc.Status.Conditions[0] = condition("Connected", "False", "NoSession", "") }), epoch)
	if got := turned[0].GetTime().AsTime(); !got.Equal(epoch.Add(-time.Minute)) {
		t.Errorf("a transition happened at %s", got)
	}
	seen := happened(peer(same), peer(func(fc fcs) { fc.Status.Conditions[0].Reason = "Other" }), epoch)
	if got := seen[0].GetTime().AsTime(); !got.Equal(epoch) {
		t.Errorf("another reason happened at %s", got)
	}
}

func TestProblemsAreListedAndNothingElse(t *testing.T) {
	t.Parallel()
	id := strings.Repeat("a", 32)
	well := func() *v1alpha1.ForeignCluster {
		fc := peerObject("office", id)
		fc.Status.Conditions = []metav1.Condition{
			condition("Trusted", "True", "Joined", "ok"), condition("Connected", "True", "SessionUp", "ok"),
			condition("Network", "False", "TunnelNotRequired", "no contract in force wants a tunnel"), condition("Offloading", "False", "NoContract", "no contract is in force"),
		}
		return fc
	}
	set := func(fc *v1alpha1.ForeignCluster, c metav1.Condition) {
		for i := range fc.Status.Conditions {
			if fc.Status.Conditions[i].Type == c.Type {
				fc.Status.Conditions[i] = c
			}
		}
	}
	type world struct {
		self     Self
		snapshot snapshot
		peers    []v1alpha1.ForeignCluster
		asks     []v1alpha1.PeeringRequest
	}
	for name, tc := range map[string]struct {
		change func(*world)
		want   []string
	}{
		"all is well":           {func(*world) {}, nil},
		"nothing is known":      {func(w *world) { *w = world{} }, nil},
		"the root ends soon":    {func(w *world) { w.self.RootExpires = epoch.AddDate(0, 1, 0) }, []string{"root certificate ends at 2026-04-01"}},
		"the certificate ended": {func(w *world) { w.self.CertificateExpires = epoch }, []string{"shows to peers ended at 2026-03-01"}},
		"a LAN of a node has one": {func(w *world) {
			w.snapshot.lans = []v1alpha1.NodeDiscovery{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.NodeDiscoveryStatus{Problems: []string{"another machine"}}}}
		}, []string{"node n1: discovery on its LANs: another machine"}},
		"a node has a problem": {func(w *world) {
			w.snapshot.nodes = []v1alpha1.FabricNode{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.FabricNodeStatus{ObservedAt: metav1.NewTime(epoch), Problems: []string{"no /dev/net/tun"}}}}
		}, []string{"node n1: no /dev/net/tun"}},
		"a fabric is silent": {func(w *world) {
			w.snapshot.nodes = []v1alpha1.FabricNode{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.FabricNodeStatus{ObservedAt: metav1.NewTime(epoch.Add(-FabricFresh - time.Second))}}}
		}, []string{"node n1: its fabric last reported at"}},
		"a fabric starts": {func(w *world) { w.snapshot.nodes = []v1alpha1.FabricNode{{}} }, nil},
		"a peer is away": {func(w *world) { set(&w.peers[0], condition("Connected", "False", "NoSession", "refused")) }, []string{
			"peer office: Connected is False: refused",
		}},
		"a peer's root ends": {func(w *world) {
			w.peers[0].Status.Conditions = append(w.peers[0].Status.Conditions, condition("CertificateValid", "False", "ExpiresSoon", "its root ends tomorrow"))
		}, []string{"peer office: CertificateValid is False: its root ends tomorrow"}},
		"a stranger is not connected": {func(w *world) {
			set(&w.peers[0], condition("Trusted", "False", "NotJoined", "x"))
			set(&w.peers[0], condition("Connected", "False", "NoSession", "x"))
		}, nil},
		"a peer was denied": {func(w *world) {
			w.peers[0].Spec.Decision = v1alpha1.DecisionDenied
			set(&w.peers[0], condition("Trusted", "False", "Denied", "x"))
		}, nil},
		"the other side has not approved": {func(w *world) {
			w.peers[0].Spec.Decision = v1alpha1.DecisionApproved
			set(&w.peers[0], condition("Trusted", "False", "Waiting", "the other side has to approve"))
		}, []string{"peer office: Trusted is False: the other side has to approve"}},
		"a tunnel is down that a contract wants": {func(w *world) {
			c := contractObject("k1", "office", id, v1alpha1.ContractConsumer, "Active", 1)
			c.Spec.Network = v1alpha1.NetworkTunnel
			w.snapshot.contracts = []v1alpha1.Contract{*c}
			set(&w.peers[0], condition("Network", "False", "ProbesLost", "no probe came back"))
			set(&w.peers[0], condition("Offloading", "True", "NodeReady", "ok"))
		}, []string{"peer office: Network is False: no probe came back"}},
		"a node is not ready": {func(w *world) {
			w.snapshot.contracts = []v1alpha1.Contract{*contractObject("k1", "office", id, v1alpha1.ContractConsumer, "Active", 1)}
			w.snapshot.contracts[0].Status.Conditions = []metav1.Condition{condition("NodeReady", "False", "Starting", "it starts")}
			set(&w.peers[0], condition("Offloading", "False", "Starting", "it starts"))
		}, []string{"peer office: Offloading is False: it starts"}},
		"a contract is over": {func(w *world) {
			w.snapshot.contracts = []v1alpha1.Contract{*contractObject("k1", "office", id, v1alpha1.ContractConsumer, "Closed", 0)}
			w.snapshot.contracts[0].Status.Conditions = []metav1.Condition{condition("UsageAgrees", "False", "Differs", "by 7 percent")}
		}, nil},
		"two counts of use differ": {func(w *world) {
			w.snapshot.contracts = []v1alpha1.Contract{*contractObject("k1", "office", id, v1alpha1.ContractConsumer, "Active", 0)}
			w.snapshot.contracts[0].Status.Conditions = []metav1.Condition{condition("UsageAgrees", "False", "Differs", "by 7 percent")}
			set(&w.peers[0], condition("Offloading", "True", "NodeReady", "ok"))
		}, []string{"contract k1: by 7 percent"}},
		"a clock is wrong": {func(w *world) {
			w.peers[0].Status.Session = &v1alpha1.PeerSession{ClockSkew: &metav1.Duration{Duration: -90 * time.Second}}
		}, []string{"peer office: its clock is -1m30s ahead"}},
		"an ask is refused": {func(w *world) {
			w.asks = []v1alpha1.PeeringRequest{{ObjectMeta: metav1.ObjectMeta{Name: "batch"}, Status: v1alpha1.PeeringRequestStatus{
				Conditions: []metav1.Condition{condition("Accepted", "False", "POLICY_REFUSED", "it offers nothing")},
			}}}
		}, []string{"peering batch: Accepted is False: it offers nothing"}},
		"more than anybody reads, with control characters": {func(w *world) {
			w.snapshot.nodes = []v1alpha1.FabricNode{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.FabricNodeStatus{ObservedAt: metav1.NewTime(epoch)}}}
			for range 2 * MaxProblems {
				w.snapshot.nodes[0].Status.Problems = append(w.snapshot.nodes[0].Status.Problems, "\x1b[2Jx")
			}
		}, slices.Repeat([]string{"node n1:  [2Jx"}, MaxProblems)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{
				self:     Self{RootExpires: epoch.AddDate(9, 0, 0), CertificateExpires: epoch.Add(time.Hour)},
				snapshot: snapshot{now: epoch}, peers: []v1alpha1.ForeignCluster{*well()},
			}
			tc.change(w)
			got := w.snapshot.problems(w.self, w.peers, w.asks, nil)
			if len(got) != len(tc.want) {
				t.Fatalf("got %q, want %q", got, tc.want)
			}
			for i := range got {
				if !strings.Contains(got[i], tc.want[i]) {
					t.Errorf("got %q, want %q", got[i], tc.want[i])
				}
			}
		})
	}
}
