package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// terms is the contract that an advertisement makes, as an honest consumer would
// write it.
func (s *stranger) terms(ad peering.Advertisement, provider []byte) peering.Terms {
	begin := time.Now().UTC().Add(-time.Minute).Truncate(time.Second)
	return peering.Terms{
		ContractID: ad.ContractID, RequestID: ad.RequestID, Revision: 1, Consumer: s.identity.Party(), Provider: peering.Party{ID: s.issuer, PublicKey: provider}, NotBefore: begin, NotAfter: begin.Add(ad.Duration),
		Clauses: ad.Clauses,
	}
}

// TestALyingPeerIsRefused joins as a third cluster and breaks the protocol's rules.
func TestALyingPeerIsRefused(t *testing.T) {
	ctx, w := theStage.On(t)
	s, token := newStranger(ctx, t, w, "liar")
	OK(t, s.join(ctx, token))
	t.Cleanup(func() { s.forget(t) })
	agent, err := w.Abroad.AgentPod(ctx)
	OK(t, err)
	peer := client.Peering{Conn: s.dial(t)}
	known, err := w.Home.Peer(ctx)
	OK(t, err)
	if known == nil {
		peered(ctx, t, w)
		known, err = w.Home.Peer(ctx)
		OK(t, err)
	}
	bundle, err := identity.ReadBundlePEM(s.issuer, []byte(known.Spec.TrustBundle))
	OK(t, err)
	provider := bundle.Roots[0].RawSubjectPublicKeyInfo
	other, err := identity.Generate(time.Now())
	OK(t, err)

	few, err := peering.ParseResources(map[string]string{"cpu": "10m", "memory": "16Mi"})
	OK(t, err)
	many, err := peering.ParseResources(map[string]string{"cpu": "5000"})
	OK(t, err)
	ask := func(id string) peering.Advertisement {
		ad, err := peer.Request(ctx, peering.Ask{RequestID: id, Resources: few})
		OK(t, err)
		return ad
	}
	envelope := func(terms peering.Terms) peering.Envelope {
		e, err := peering.NewEnvelope(terms)
		OK(t, err)
		return e
	}
	signed := func(e peering.Envelope, by *identity.Identity) peering.Envelope {
		e, err := e.Sign(rand.Reader, by.ID(), by.Signer())
		OK(t, err)
		return e
	}
	honest := func(id string) peering.Terms { return s.terms(ask(id), provider) }

	t.Run("a request for more than there is", func(t *testing.T) {
		_, err := peer.Request(ctx, peering.Ask{RequestID: "greedy", Resources: many})
		wantReason(t, err, peering.ReasonCapacityExhausted)
	})
	t.Run("a contract without a signature", func(t *testing.T) {
		_, err := peer.Sign(ctx, envelope(honest("unsigned")))
		wantReason(t, err, peering.ReasonSignatureInvalid)
	})
	t.Run("a contract that another cluster signed", func(t *testing.T) {
		_, err := peer.Sign(ctx, signed(envelope(honest("foreign")), other))
		wantReason(t, err, peering.ReasonSignatureInvalid)
	})
	t.Run("a contract with the right name under another's signature", func(t *testing.T) {
		e := signed(envelope(honest("forged")), other)
		e.Signatures[0].KeyID = s.identity.ID()
		_, err := peer.Sign(ctx, e)
		wantReason(t, err, peering.ReasonSignatureInvalid)
	})
	t.Run("a contract that was changed after it was signed", func(t *testing.T) {
		e := signed(envelope(honest("changed")), s.identity)
		e.Payload = bytes.Replace(e.Payload, []byte(`"cpu":"10m"`), []byte(`"cpu":"90m"`), 1)
		_, err := peer.Sign(ctx, e)
		wantReason(t, err, peering.ReasonSignatureInvalid)
	})
	t.Run("a contract for more than was offered", func(t *testing.T) {
		terms := honest("more")
		terms.Resources, err = peering.ParseResources(map[string]string{"cpu": "1", "memory": "16Mi"})
		OK(t, err)
		_, err := peer.Sign(ctx, signed(envelope(terms), s.identity))
		wantReason(t, err, peering.ReasonContractMismatch)
	})
	t.Run("a contract that was not offered", func(t *testing.T) {
		terms := honest("invented")
		terms.ContractID = "c-0123456789abcdef0123"
		_, err := peer.Sign(ctx, signed(envelope(terms), s.identity))
		wantReason(t, err, peering.ReasonAdvertisementExpired)
	})
	t.Run("a contract in the name of another consumer", func(t *testing.T) {
		terms := honest("impostor")
		terms.Consumer = other.Party()
		_, err := peer.Sign(ctx, signed(envelope(terms), other))
		wantReason(t, err, peering.ReasonSignatureInvalid)
	})
	t.Run("a payload of an unknown type", func(t *testing.T) {
		e := envelope(honest("type"))
		e.PayloadType = "application/vnd.entente.contract.v9+json"
		_, err := peer.Sign(ctx, signed(e, s.identity))
		wantReason(t, err, peering.ReasonSignatureInvalid)
	})
	t.Run("an end to another cluster's contract", func(t *testing.T) {
		peered(ctx, t, w)
		_, abroad := TheContract(ctx, t, w)
		OK(t, peer.Terminate(ctx, abroad.Name, "because I can", time.Time{}))
		time.Sleep(2 * time.Second)
		if _, still := TheContract(ctx, t, w); still.Name != abroad.Name || still.Spec.Termination != "" {
			t.Errorf("contract %s is now %s, termination %q", abroad.Name, still.Name, still.Spec.Termination)
		}
	})
	t.Run("a message that is too large", func(t *testing.T) {
		_, err := peer.Sign(ctx, peering.Envelope{Payload: bytes.Repeat([]byte("x"), 8<<20), PayloadType: peering.PayloadType})
		wantReason(t, err, "RESOURCE_EXHAUSTED")
	})
	t.Run("another cluster's pods", func(t *testing.T) {
		_, abroad := TheContract(ctx, t, w)
		stream, err := ententev1.NewOffloadServiceClient(peer.Conn).Sync(ctx)
		if err == nil {
			err = stream.Send(&ententev1.SyncRequest{Message: &ententev1.SyncRequest_Open_{Open: &ententev1.SyncRequest_Open{ContractId: abroad.Name}}})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		wantReason(t, err, peering.ReasonContractUnknown)
	})
	after, err := w.Abroad.AgentPod(ctx)
	OK(t, err)
	if after.UID != agent.UID || Restarts(after) != Restarts(agent) {
		t.Errorf("the agent was restarted by all this: %d times, was %d", Restarts(after), Restarts(agent))
	}
	var contracts v1alpha1.ContractList
	OK(t, w.Abroad.Client.List(ctx, &contracts))
	for _, c := range contracts.Items {
		if c.Spec.PeerID == string(s.identity.ID()) {
			t.Errorf("the liar got contract %s", c.Name)
		}
	}
}

// TestRequestBeyondPolicy asks for what the provider does not offer, as a user.
func TestRequestBeyondPolicy(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	request := func(name string, resources corev1.ResourceList) *v1alpha1.PeeringRequest {
		return &v1alpha1.PeeringRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.PeeringRequestSpec{ForeignCluster: w.Abroad.Name, Resources: resources},
		}
	}
	refused := func(t *testing.T, s *v1alpha1.PeeringRequest, reason string, words ...string) {
		OK(t, w.Home.Client.Create(ctx, s))
		t.Cleanup(func() {
			OK(t, ctrlclient.IgnoreNotFound(w.Home.Client.Delete(context.WithoutCancel(t.Context()), s)))
		})
		OK(t, w.Until(ctx, Soon, "the ask to be refused", func(ctx context.Context) (string, error) {
			if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(s), s); err != nil {
				return "", err
			}
			c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionAccepted)
			if c == nil {
				return "it has no condition", nil
			}
			if c.Status != metav1.ConditionFalse || c.Reason != reason {
				return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message), nil
			}
			for _, word := range words {
				if !strings.Contains(c.Message, word) {
					t.Errorf("the message does not say %q: %s", word, c.Message)
				}
			}
			return "", nil
		}))
	}
	t.Run("more than there is", func(t *testing.T) {
		refused(t, request("greedy", corev1.ResourceList{"cpu": resource.MustParse("1000")}), "CapacityExhausted", "cpu")
	})
	t.Run("anything, where nothing is offered", func(t *testing.T) {
		var policy v1alpha1.PeeringPolicy
		OK(t, w.Abroad.Client.Get(ctx, ctrlclient.ObjectKey{Name: "entente-default"}, &policy))
		policy.Spec.Accept = v1alpha1.AcceptNever
		OK(t, w.Abroad.Client.Update(ctx, &policy))
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			OK(t, w.Abroad.Client.Get(ctx, ctrlclient.ObjectKey{Name: "entente-default"}, &policy))
			policy.Spec.Accept = v1alpha1.AcceptAutomatic
			OK(t, w.Abroad.Client.Update(ctx, &policy))
		})
		refused(t, request("hopeful", corev1.ResourceList{"cpu": resource.MustParse("10m")}), "PolicyRefused")
		// What was agreed on before stands.
		TheContract(ctx, t, w)
	})
}

// TestAPodBeyondItsQuotaIsNotRun binds a pod by hand to the virtual node, past the scheduler,
// that asks for more than the contract has.
func TestAPodBeyondItsQuotaIsNotRun(t *testing.T) {
	ctx, w := theStage.On(t)
	node := peered(ctx, t, w)
	Offloaded(ctx, t, w, shop)
	contract, _ := TheContract(ctx, t, w)
	beyond := func(name string, resource corev1.ResourceName, requests corev1.ResourceList) {
		t.Helper()
		pod := WebPod(shop, name, map[string]string{"app": name})
		pod.Spec.NodeName = node
		pod.Spec.Tolerations = []corev1.Toleration{{Key: v1alpha1.TaintVirtualNode, Operator: corev1.TolerationOpExists}}
		pod.Spec.Containers[0].Resources.Requests = requests
		OK(t, w.Home.Create(ctx, pod))
		OK(t, w.Until(ctx, Soon, "the pod to say why it does not run", func(ctx context.Context) (string, error) {
			if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(pod), pod); err != nil {
				return "", err
			}
			if pod.Status.Reason != "QuotaExceeded" || !strings.Contains(pod.Status.Message, string(resource)) {
				return PodText(pod), nil
			}
			return "", nil
		}))
		t.Logf("the pod says: %s: %s", pod.Status.Reason, pod.Status.Message)
		if pod.Status.Phase != corev1.PodPending {
			t.Errorf("the pod is %s, want Pending: it may fit later", pod.Status.Phase)
		}
		if twin, err := w.Abroad.Twin(ctx, pod); err == nil {
			t.Errorf("the provider made %s", PodText(twin))
		}
		out, err := w.Home.Kubectl(ctx, "get", "pod", "-n", shop, name)
		OK(t, err)
		if !strings.Contains(out, "QuotaExceeded") {
			t.Errorf("kubectl get pod shows\n%s", out)
		}
	}
	cpu, memory := contract.Spec.Resources[corev1.ResourceCPU], contract.Spec.Resources[corev1.ResourceMemory]
	cpu.Add(resource.MustParse("1"))
	memory.Add(resource.MustParse("1Mi"))
	beyond("glutton", corev1.ResourceCPU, corev1.ResourceList{corev1.ResourceCPU: cpu})
	beyond("hoarder", corev1.ResourceMemory, corev1.ResourceList{corev1.ResourceMemory: memory})
	// What fits is not kept from running by what does not.
	fits := WebPod(shop, "modest", map[string]string{"app": "modest"})
	place(&fits.Spec, Away, nil)
	OK(t, w.Home.Create(ctx, fits))
	_, err := w.Home.PodsReady(ctx, Scheduled, shop, fits.Labels, 1)
	OK(t, err)
	// The request names no pods, but they have a limit; with one pod in the contract that one keeps
	// running, and a second is refused.
	pods := contract.Spec.Resources[corev1.ResourcePods]
	if pods.Sign() <= 0 {
		t.Fatalf("the contract has %s pods", pods.String())
	}
	var requests v1alpha1.PeeringRequestList
	OK(t, w.Home.Client.List(ctx, &requests))
	podsAre := func(ctx context.Context, n string) error {
		for _, r := range requests.Items {
			if string(r.UID) == contract.Spec.RequestID {
				if _, err := w.Home.Kubectl(ctx, "patch", "peeringrequest", r.Name, "--type=merge", "-p", `{"spec":{"resources":{"pods":"`+n+`"}}}`); err != nil {
					return err
				}
			}
		}
		return w.Until(ctx, Soon, "the contract to have pods: "+n, func(ctx context.Context) (string, error) {
			// Home holds it when the provider has said that it does.
			for _, s := range w.Sides() {
				var c v1alpha1.Contract
				if err := s.Client.Get(ctx, ctrlclient.ObjectKey{Name: contract.Name}, &c); err != nil {
					return "", err
				}
				if got := c.Spec.Resources[corev1.ResourcePods]; got.String() != n {
					return "it has " + got.String() + " in " + s.Name, nil
				}
				if got := c.Spec.Resources[corev1.ResourceMemory]; got.IsZero() {
					return "it has no memory any more in " + s.Name, nil
				}
			}
			return "", nil
		})
	}
	t.Cleanup(func() { OK(t, podsAre(context.WithoutCancel(ctx), pods.String())) })
	OK(t, podsAre(ctx, "1"))
	beyond("second", corev1.ResourcePods, nil)
}
