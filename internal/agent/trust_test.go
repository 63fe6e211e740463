package agent

import (
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/session"
	"github.com/entente-dev/entente/peering"
)

// trustTest is a trust whose sessions do not dial.
type trustTest struct {
	*trusted
	looks atomic.Int32
}

func newTrustTest(t *testing.T) *trustTest {
	t.Helper()
	id, err := identity.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	source, err := identity.NewSource(identity.SourceConfig{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	tt := &trustTest{trusted: &trusted{self: id.ID(), bundles: identity.NewBundles()}}
	tt.again = func() { tt.looks.Add(1) }
	tt.sessions, err = session.New(session.Config{Source: source, Bundles: tt.bundles, Server: grpc.NewServer()})
	if err != nil {
		t.Fatal(err)
	}
	return tt
}

// dials reports whether a peer is dialled, and whether at once.
func (tt *trustTest) dials(id peering.ClusterID) (dialled, now bool) {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	for _, p := range tt.dialled {
		if p.ID == id {
			return true, p.Now
		}
	}
	return false, false
}

func joiner(t *testing.T) (peering.ClusterID, identity.ClusterInfo, controller.TrustedPeer) {
	t.Helper()
	id, err := identity.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	info := identity.ClusterInfo{Name: "milan", Endpoints: []string{"127.0.0.1:1"}, Bundle: id.TrustBundle()}
	return id.ID(), info, controller.TrustedPeer{ID: id.ID(), Endpoints: info.Endpoints, Bundle: info.PEM()}
}

func TestANewPeerStaysTrustedWhileTheCacheLags(t *testing.T) {
	t.Parallel()
	tt := newTrustTest(t)
	id, info, peer := joiner(t)
	tt.Set(nil, []peering.ClusterID{id})
	if !tt.isDenied(id) {
		t.Fatal("it is not denied")
	}
	if err := tt.admit(id, info, true); err != nil {
		t.Fatal(err)
	}
	tt.Set(nil, []peering.ClusterID{id}) // as it was before it joined
	if !tt.bundles.Has(id) || tt.isDenied(id) {
		t.Error("what a cache shows late undoes a join")
	}
	tt.Set([]controller.TrustedPeer{peer}, nil)
	if !tt.bundles.Has(id) {
		t.Error("it is not trusted")
	}
	tt.Set(nil, []peering.ClusterID{id}) // now it is news
	if tt.bundles.Has(id) || !tt.isDenied(id) {
		t.Error("a denial takes no effect")
	}
}

func TestAPeerWithoutForeignClusterLosesTrust(t *testing.T) {
	t.Parallel()
	tt := newTrustTest(t)
	id, info, _ := joiner(t)
	if err := tt.admit(id, info, true); err != nil {
		t.Fatal(err)
	}
	tt.Set(nil, nil)
	tt.mu.Lock()
	tt.admitted[id].at = time.Now().Add(-admissionUnseen)
	tt.mu.Unlock()
	tt.Set(nil, nil)
	if tt.bundles.Has(id) {
		t.Error("it is trusted although no ForeignCluster does")
	}
}

func TestTheJoiningClusterDialsAndTheOtherIsDialledAtOnce(t *testing.T) {
	t.Parallel()
	tt := newTrustTest(t)
	caller, callerInfo, callerPeer := joiner(t)
	issuer, issuerInfo, issuerPeer := joiner(t)
	if err := tt.admit(caller, callerInfo, true); err != nil {
		t.Fatal(err)
	}
	if err := tt.admit(issuer, issuerInfo, false); err != nil {
		t.Fatal(err)
	}
	check := func(when string, ofCaller, ofIssuer bool) {
		t.Helper()
		if dialled, _ := tt.dials(caller); dialled != ofCaller {
			t.Errorf("%s: who called is dialled: %v", when, dialled)
		}
		if dialled, now := tt.dials(issuer); !dialled || now != ofIssuer {
			t.Errorf("%s: who was called is dialled: %v, at once: %v", when, dialled, now)
		}
	}
	check("admitted", false, true)
	tt.Set(nil, nil)
	check("before the cache shows them", false, true)
	tt.Set([]controller.TrustedPeer{callerPeer, issuerPeer}, nil)
	check("when it does", false, true)
	tt.mu.Lock()
	for _, a := range tt.admitted {
		a.at = time.Now().Add(-calledDials)
	}
	tt.mu.Unlock()
	tt.Set([]controller.TrustedPeer{callerPeer, issuerPeer}, nil)
	check("later", true, false)
	if len(tt.admitted) != 0 {
		t.Errorf("%d are remembered", len(tt.admitted))
	}
}

func TestUnchangedBundlesAreNotParsedAgain(t *testing.T) {
	t.Parallel()
	tt := newTrustTest(t)
	id, _, peer := joiner(t)
	told := 0
	defer tt.bundles.Watch(func(peering.ClusterID, bool) { told++ })()
	for range 3 {
		tt.Set([]controller.TrustedPeer{peer}, nil)
	}
	if !tt.bundles.Has(id) || told != 1 {
		t.Errorf("trusted: %v, set %d times", tt.bundles.Has(id), told)
	}
	peer.Bundle = "none"
	tt.Set([]controller.TrustedPeer{peer}, nil)
	if tt.bundles.Has(id) {
		t.Error("a malformed bundle trusts a cluster")
	}
}
