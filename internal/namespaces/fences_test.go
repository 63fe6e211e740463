package namespaces

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
)

// in is the namespace in a foreign cluster; a length of 0 means no fence.
func in(cluster, state string, fence time.Duration) v1alpha1.NamespaceInCluster {
	c := v1alpha1.NamespaceInCluster{ForeignCluster: cluster, Contract: "c-" + cluster, State: state}
	if fence > 0 {
		c.Fence = &metav1.Duration{Duration: fence}
	}
	return c
}

// second is the namespace there by a second contract.
func second(cluster, state string, fence time.Duration) v1alpha1.NamespaceInCluster {
	c := in(cluster, state, fence)
	c.Contract += "-second"
	return c
}

// unanswered is the namespace there in its virtual node's state, which was asked for another fence.
func unanswered(asked time.Duration, c v1alpha1.NamespaceInCluster) v1alpha1.NamespaceInCluster {
	c.PendingFence = &metav1.Duration{Duration: asked}
	return c
}

// asks is the namespace there while the provider has not responded about another fence.
func asks(asked time.Duration, c v1alpha1.NamespaceInCluster) v1alpha1.NamespaceInCluster {
	c.PendingFence = &metav1.Duration{Duration: asked}
	c.Message = awaitingAgreement(c.Fence.Duration, asked)
	return c
}

func TestFencesAreWrittenDownAheadOfWhatProvidersKeepTo(t *testing.T) {
	t.Parallel()
	type states = []v1alpha1.NamespaceInCluster
	const five, seven, ten = 5 * time.Minute, 7 * time.Minute, 10 * time.Minute
	waits := in("office", "Ready", 0)
	waits.Message = notAgreed
	for name, test := range map[string]struct {
		wants   *v1alpha1.PeerLost
		was, is states
		want    states
		said    []string
	}{
		"no fence is wanted":          {nil, nil, states{in("office", "Ready", 0)}, states{in("office", "Ready", 0)}, nil},
		"it is not agreed on":         {fence(five), nil, states{in("office", "Ready", 0)}, states{waits}, nil},
		"it is agreed on":             {fence(five), states{in("office", "Ready", 0)}, states{in("office", "Ready", five)}, states{in("office", "Ready", five)}, []string{"Normal FenceAgreed"}},
		"it was before":               {fence(five), states{in("office", "Ready", five)}, states{in("office", "Ready", five)}, states{in("office", "Ready", five)}, nil},
		"a longer one is wanted":      {fence(ten), states{in("office", "Ready", five)}, states{in("office", "Ready", five)}, states{asks(ten, in("office", "Ready", five))}, nil},
		"it was asked for":            {fence(ten), states{asks(ten, in("office", "Ready", five))}, states{unanswered(ten, in("office", "Ready", ten))}, states{asks(ten, in("office", "Ready", five))}, nil},
		"and is agreed on":            {fence(ten), states{asks(ten, in("office", "Ready", five))}, states{in("office", "Ready", ten)}, states{in("office", "Ready", ten)}, []string{"Normal FenceAgreed"}},
		"a shorter one is wanted":     {fence(five), states{in("office", "Ready", ten)}, states{in("office", "Ready", ten)}, states{asks(five, in("office", "Ready", ten))}, nil},
		"another one, meanwhile":      {fence(seven), states{asks(ten, in("office", "Ready", five))}, states{unanswered(seven, in("office", "Ready", ten))}, states{asks(ten, in("office", "Ready", five))}, nil},
		"the first one, meanwhile":    {fence(five), states{asks(ten, in("office", "Ready", five))}, states{unanswered(five, in("office", "Ready", ten))}, states{asks(ten, in("office", "Ready", five))}, nil},
		"the process before asked":    {fence(ten), states{asks(ten, in("office", "Ready", five))}, nil, states{pending(asks(ten, in("office", "Ready", five)))}, nil},
		"none is wanted any more":     {&v1alpha1.PeerLost{Action: v1alpha1.PeerLostKeep}, states{in("office", "Ready", five)}, states{in("office", "Ready", five)}, states{in("office", "Ready", 0)}, nil},
		"no virtual node runs yet":    {fence(five), states{in("office", "Ready", five)}, nil, states{in("office", "Pending", five)}, nil},
		"one runs, and knows of none": {fence(five), states{in("office", "Ready", five)}, states{in("office", "Pending", 0)}, states{in("office", "Pending", 0)}, nil},
		"the contract is over":        {fence(five), states{in("gone", "Ready", five)}, nil, nil, nil},
		"of several each":             {fence(five), states{in("office", "Ready", five)}, states{in("plant", "Ready", five)}, states{in("office", "Pending", five), in("plant", "Ready", five)}, []string{"Normal FenceAgreed"}},
		"of two contracts with one each": {
			fence(five),
			states{in("office", "Ready", five)},
			states{in("office", "Ready", five), second("office", "Ready", ten)},
			states{in("office", "Ready", five), asks(five, second("office", "Ready", ten))},
			[]string{"Normal FenceAgreed"},
		},
		"one of them starts": {
			fence(five),
			states{in("office", "Ready", five), second("office", "Ready", ten)},
			states{in("office", "Ready", five)},
			states{in("office", "Ready", five), second("office", "Pending", ten)},
			nil,
		},
		"none is wanted, and no node runs": {nil, states{in("office", "Ready", five)}, nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "offloading"}}
			o.Spec.PeerLost, o.Status.Clusters = test.wants, test.was
			said := &peertest.Recorder{}
			var stored v1alpha1.NamespaceOffloading
			c := peertest.Client(t, o, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
			r := &Reconciler{
				Client: c, Events: said,
				States: func(string, *metav1.LabelSelector) []v1alpha1.NamespaceInCluster { return slices.Clone(test.is) },
				Starts: func(_ context.Context, contract string) (bool, error) { return contract != "c-gone", nil },
				// Providers are asked for a change only after it is recorded.
				Changed: func() {
					if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), &stored); err != nil {
						t.Error(err)
					}
				},
			}
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, stored.Status.Clusters); diff != "" {
				t.Errorf("the status (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.said, said.Events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func pending(c v1alpha1.NamespaceInCluster) v1alpha1.NamespaceInCluster {
	c.State, c.Message = "Pending", ""
	return c
}

// A process counts on the longer one of what was agreed and what was asked for, and on none before the first was agreed.
func TestFencedIsTheLongerOneOfAgreedAndAsked(t *testing.T) {
	t.Parallel()
	const five, ten = 5 * time.Minute, 10 * time.Minute
	none := in("office", "Ready", 0)
	none.PendingFence = &metav1.Duration{Duration: ten}
	for want, c := range map[time.Duration]v1alpha1.NamespaceInCluster{
		0: none, five: in("office", "Ready", five), ten: asks(ten, in("office", "Ready", five)), ten + 1: asks(five, in("office", "Ready", ten+1)),
	} {
		o := &v1alpha1.NamespaceOffloading{Status: v1alpha1.NamespaceOffloadingStatus{Clusters: []v1alpha1.NamespaceInCluster{c}}}
		if got := Fenced(o, c.Contract); got != want {
			t.Errorf("%v, asked %v: counts on %s, want %s", c.Fence, c.PendingFence, got, want)
		}
	}
}

func fence(after time.Duration) *v1alpha1.PeerLost {
	return &v1alpha1.PeerLost{Action: v1alpha1.PeerLostFence, After: &metav1.Duration{Duration: after}}
}
