package volumes

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

func deleteClaim(t *testing.T, s *site) {
	t.Helper()
	if err := s.client.Delete(t.Context(), s.claim(t)); err != nil {
		t.Fatal(err)
	}
}

// asked returns how many requests are recorded.
func (s *site) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.acks)
}

func TestAVolumeThatWasNeverGivenToAClaimIsDeletedWithIt(t *testing.T) {
	for name, before := range map[string]func(s *site){
		"before the provider answers":        func(*site) {},
		"after the provider made the volume": func(s *site) { s.answer(nil) },
		"while the contract has no room":     func(s *site) { s.answer(&peering.Refusal{Message: "too much", Retryable: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, asks("entente", "office.entente.dev"))
			s.reconcile(t)
			was := s.provider.wanted["u1"]
			before(s)
			deleteClaim(t, s)
			s.reconcile(t)
			if !s.provider.unwanted["u1"] || s.provider.wanted["u1"].Ref.UID != "" {
				t.Fatal("the provider keeps a volume that nobody at home can delete")
			}
			// An answer to the request for the volume comes late.
			s.Ack("c", peering.Ack{Ref: was.Ref, Hash: was.Hash()})
			if s.asked() != 1 {
				t.Error("it was forgotten before the provider deleted it")
			}
			s.answer(&peering.Refusal{Message: "not now", Retryable: true})
			if next, err := s.reconcileClaim(t.Context(), reconcileRequest()); err != nil || next.RequeueAfter == 0 || s.asked() != 1 {
				t.Errorf("it is not reconciled again: %+v, %v, with %d requests", next, err, s.asked())
			}
			s.answer(nil)
			s.reconcile(t)
			if s.asked() != 0 || s.volume(t) != nil {
				t.Errorf("%d requests are left, volume %v", s.asked(), s.volume(t))
			}
		})
	}
}

func TestARequestEndsWithItsContract(t *testing.T) {
	s := newSite(t, asks("entente", "office.entente.dev"))
	s.reconcile(t)
	deleteClaim(t, s)
	s.provider.contracts = nil
	s.reconcile(t)
	if s.asked() != 0 {
		t.Errorf("%d requests are left", s.asked())
	}
}

// TestAVolumeThatAClaimHadIsNeverDropped deletes the claim of a volume that may have data.
func TestAVolumeThatAClaimHadIsNeverDropped(t *testing.T) {
	for name, do := range map[string]func(t *testing.T, s *site){
		"its volume at home is there": func(*testing.T, *site) {},
		"its volume at home was deleted by hand": func(t *testing.T, s *site) {
			t.Helper()
			if err := s.client.Delete(t.Context(), s.volume(t)); err != nil {
				t.Fatal(err)
			}
		},
		"another process made the volume at home": func(_ *testing.T, s *site) {
			s.acks = map[request]ack{{uid: "u1", contract: "c"}: {claim: reconcileRequest().NamespacedName, peer: "p", hash: peering.Hash{1}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, asks("entente", "office.entente.dev"))
			s.reconcile(t)
			s.answer(nil)
			// The claim is deleted as soon as its volume is there: before they are bound.
			if _, err := s.reconcileClaim(t.Context(), reconcileRequest()); err != nil || s.volume(t) == nil {
				t.Fatalf("volume %v, %v", s.volume(t), err)
			}
			do(t, s)
			deleteClaim(t, s)
			s.reconcile(t)
			if s.provider.unwanted["u1"] {
				t.Error("the provider was asked to delete it")
			}
		})
	}
}

func TestAClaimThatGoesToAnotherNodeLeavesNoVolumeBehind(t *testing.T) {
	node := func(name, peer, contract string) client.Object {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{api.LabelVirtualNode: "true", api.LabelPeer: peer, api.LabelContract: contract}}}
	}
	for name, tc := range map[string]struct {
		to    string
		waits bool // until the first request is answered
	}{
		"of another peer":                     {to: "shop.entente.dev"},
		"of the same peer, by a new contract": {to: "office2.entente.dev", waits: true},
		"to none":                             {to: "", waits: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, asks("entente", "office.entente.dev"), node("shop.entente.dev", "q", "d"), node("office2.entente.dev", "p", "d"))
			s.provider.contracts = append(s.provider.contracts, Contract{ID: "d", Resources: share.Resources})
			s.reconcile(t)
			c := s.claim(t)
			c.Annotations[annotationNode] = tc.to
			if err := s.client.Update(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			s.reconcile(t)
			if !slices.Contains(s.provider.calls, "unwant c") || slices.Contains(s.provider.calls, "want d") == tc.waits {
				t.Fatalf("calls %v", s.provider.calls)
			}
			s.Ack("c", peering.Ack{Ref: peering.ObjectRef{Kind: peering.KindClaim, Namespace: "shop", Name: Name("u1"), UID: "u1"}})
			s.reconcile(t)
			if _, left := s.acks[request{uid: "u1", contract: "c"}]; left || slices.Contains(s.provider.calls, "want d") == (tc.to == "") {
				t.Errorf("calls %v, requests %v", s.provider.calls, s.acks)
			}
		})
	}
}

func TestAVolumeThatIsAtHomeIsNotAskedForAgain(t *testing.T) {
	s := provisioned(t)
	s.provider.calls = nil
	s.acks = map[request]ack{} // the agent was restarted
	c := s.claim(t)
	c.Spec.VolumeName = ""
	if err := s.client.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if _, err := s.reconcileClaim(t.Context(), reconcileRequest()); err != nil || len(s.provider.calls) != 0 {
		t.Errorf("calls %v, %v", s.provider.calls, err)
	}
}

func TestAVolumeThatIsAtHomeHasToExist(t *testing.T) {
	s := newSite(t, asks("entente", "office.entente.dev"))
	s.reconcile(t)
	if strings.Contains(string(s.provider.wanted["u1"].JSON), "exists") {
		t.Fatalf("a new volume has to exist: %s", s.provider.wanted["u1"].JSON)
	}
	s.answer(nil)
	s.reconcile(t)
	s.bind(t)
	s.reconcile(t)
	if !strings.Contains(string(s.provider.wanted["u1"].JSON), `"exists":true`) {
		t.Fatalf("the provider may create it again, empty: %s", s.provider.wanted["u1"].JSON)
	}
	_ = s.recorded()
	s.answer(&peering.Refusal{Reason: peering.RefusedInvalid, Retryable: true, Message: "it is lost"})
	s.reconcile(t)
	if got := s.recorded(); strings.Count(got, reasonUnavailable) < 2 || !strings.Contains(got, "it is lost") {
		t.Errorf("events %q, want one of the claim and one of the volume", got)
	}
}

func TestAllContractsThatWereAskedForAVolumeKnowThatItExists(t *testing.T) {
	s := newSite(t, asks("entente", "office.entente.dev"))
	s.reconcile(t)
	s.answer(nil)
	s.provider.contracts = []Contract{{ID: "b", Resources: share.Resources}, s.provider.contracts[0]} // the first one keeps it
	s.reconcile(t)
	for _, contract := range []string{"b", "c"} {
		if !strings.Contains(s.provider.forms[contract], `"exists":true`) {
			t.Errorf("contract %s was asked for %s", contract, s.provider.forms[contract])
		}
	}
	if s.asked() != 1 {
		t.Errorf("%d requests, want that of the contract that keeps it", s.asked())
	}
}
