package store

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/inband"
)

func parametersOf(id peering.ClusterID) inband.Parameters {
	return inband.Parameters{ID: id, Name: "office", ExchangeKey: [32]byte{1}, Gateways: []peering.Gateway{{Name: "gw1", PublicKey: [32]byte{2}, Endpoints: []string{"192.0.2.1:51820"}}}}
}

// contractsOf is a cache of contracts.
func contractsOf(t *testing.T, of ...client.Object) client.Reader {
	t.Helper()
	scheme := newPeersClient(t).Scheme()
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(of...).WithIndex(&v1alpha1.Contract{}, fieldPeer, func(o client.Object) []string {
		return []string{o.(*v1alpha1.Contract).Spec.PeerID}
	}).Build()
}

func TestConnectInBandMakesOneForeignClusterAndReplacesItsParameters(t *testing.T) {
	t.Parallel()
	other, info := cluster(t, "office")
	c, none := newPeersClient(t), contractsOf(t)
	name, err := ConnectInBand(t.Context(), c, none, parametersOf(other.ID()), "")
	if err != nil || name != "office" {
		t.Fatal(name, err)
	}
	fc := get(t, c, name)
	if fc.Spec.Decision != v1alpha1.DecisionApproved || fc.Spec.InBand == nil || len(fc.Finalizers) != 1 || fc.Status.Source != v1alpha1.SourceManual || Pending(fc) {
		t.Errorf("it is %+v, %+v", fc.Spec, fc.Status)
	}
	// It introduces itself: it is trusted, and reached no other way than before.
	if _, err := Introduce(t.Context(), c, Introduction{ID: other.ID(), Info: info, Time: start}); err != nil {
		t.Fatal(err)
	}
	if fc = get(t, c, name); fc.Spec.TrustBundle == "" || len(fc.Spec.Endpoints) > 0 {
		t.Errorf("after the introduction it is %+v", fc.Spec)
	}
	// Its token names endpoints, too.
	if _, err := AddPeer(t.Context(), c, nil, other.ID(), info, ""); err != nil {
		t.Fatal(err)
	}
	if fc = get(t, c, name); len(fc.Spec.Endpoints) > 0 {
		t.Errorf("after a token it is dialled at %q", fc.Spec.Endpoints)
	}
	again := parametersOf(other.ID())
	again.Gateways[0].Name = "gw2"
	if name, err = ConnectInBand(t.Context(), c, none, again, ""); err != nil || name != "office" || len(names(t, c)) != 1 {
		t.Fatal(name, err, names(t, c))
	}
	if fc = get(t, c, name); fc.Spec.InBand.Gateways[0].Name != "gw2" || fc.Spec.TrustBundle == "" {
		t.Errorf("with new parameters it is %+v", fc.Spec)
	}
}

func TestConnectInBandOfAClusterThatIsKnown(t *testing.T) {
	t.Parallel()
	other, info := cluster(t, "office")
	known := func(edit func(*v1alpha1.ForeignCluster)) client.Client {
		fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "hq"}}
		fc.Spec = v1alpha1.ForeignClusterSpec{ClusterID: string(other.ID()), Endpoints: info.Endpoints, TrustBundle: info.PEM()}
		fc.Status.PresharedKey = &v1alpha1.PresharedKeyStatus{Number: 7}
		if edit != nil {
			edit(fc)
		}
		return newPeersClient(t, fc)
	}
	contract := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: "k"}, Spec: v1alpha1.ContractSpec{PeerID: string(other.ID()), Network: v1alpha1.NetworkTunnel}}
	contract.Status.Phase = peering.PhaseActive.String()

	c := known(nil)
	if _, err := ConnectInBand(t.Context(), c, contractsOf(t, contract), parametersOf(other.ID()), ""); wire.ReasonOf(wire.Status(peering.AsError(err)).Err()) != peering.ReasonPeeringExists || !strings.Contains(err.Error(), "unpeer") {
		t.Errorf("a tunnel in use: %v", err)
	}
	if _, err := ConnectInBand(t.Context(), c, contractsOf(t), parametersOf(other.ID()), ""); err != nil {
		t.Fatal(err)
	}
	fc := get(t, c, "hq")
	if fc.Spec.InBand == nil || len(fc.Spec.Endpoints) > 0 || fc.Spec.TrustBundle == "" || fc.Status.PresharedKey != nil {
		t.Errorf("a peer that was dialled is %+v, %+v", fc.Spec, fc.Status.PresharedKey)
	}
	// Its contracts have an in-band tunnel by now, whose key was replaced.
	fc.Status.PresharedKey = &v1alpha1.PresharedKeyStatus{Number: 1}
	if err := c.Status().Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	if _, err := ConnectInBand(t.Context(), c, contractsOf(t, contract), parametersOf(other.ID()), ""); err != nil {
		t.Error(err)
	}
	if k := get(t, c, "hq").Status.PresharedKey; k == nil || k.Number != 1 {
		t.Errorf("connected again, the key is %+v", k)
	}
	c = known(func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision, fc.Spec.TrustBundle = v1alpha1.DecisionDenied, "" })
	if _, err := ConnectInBand(t.Context(), c, contractsOf(t), parametersOf(other.ID()), ""); err != nil || get(t, c, "hq").Spec.Decision != v1alpha1.DecisionApproved {
		t.Errorf("one that was denied: %v", err)
	}
	third, _ := cluster(t, "third")
	if _, err := ConnectInBand(t.Context(), c, contractsOf(t), parametersOf(third.ID()), "hq"); peering.ReasonOf(err) != peering.ReasonPeerNameTaken {
		t.Errorf("a name that is taken: %v", err)
	}
}
