package control

import (
	"context"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/peering"
)

// TestEachSideEndsAPeeringAlone: promise 3, with the other side's agent dead.
func TestEachSideEndsAPeeringAlone(t *testing.T) {
	t.Parallel()
	t.Run("the consumer, with pods abroad", func(t *testing.T) {
		home, abroad := agents(t)
		peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
		namespace, remote := offloaded(t, home, abroad)
		p := remotePod(namespace, "left", nil)
		if err := home.client.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := runs(t.Context(), home, p); err != nil {
			t.Fatal(err)
		}
		abroad.kill()
		_, err := call(t.Context(), home, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.EndPeeringResponse, error) {
			return a.EndPeering(ctx, &ententev1.EndPeeringRequest{Peer: "peers/" + abroadName, Now: true, Forget: true})
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := empty(t.Context(), home, soon); err != nil {
			t.Errorf("with the provider dead: %v", err)
		}
		// Nothing there can end the provider's pod: it runs until its own side is notified, or
		// decides.
		var theirs corev1.PodList
		if err := abroad.client.List(t.Context(), &theirs, inNamespace(remote)); err != nil || len(theirs.Items) != 1 {
			t.Errorf("abroad has %d pods, %v", len(theirs.Items), err)
		}
		if err := abroad.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		agreed(t, abroad)
	})
	t.Run("the provider", func(t *testing.T) {
		home, abroad := agents(t)
		peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
		namespace, _ := offloaded(t, home, abroad)
		p := remotePod(namespace, "left", nil)
		if err := home.client.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := runs(t.Context(), home, p); err != nil {
			t.Fatal(err)
		}
		home.kill()
		if err := forget(t.Context(), abroad); err != nil {
			t.Fatal(err)
		}
		if err := empty(t.Context(), abroad, soon); err != nil {
			t.Errorf("with the consumer dead: %v", err)
		}
		left, err := list[corev1.NamespaceList](t.Context(), abroad, managed())
		if err != nil {
			t.Fatal(err)
		}
		for i := range left.Items {
			if left.Items[i].DeletionTimestamp.IsZero() {
				t.Errorf("abroad keeps namespace %s", left.Items[i].Name)
			}
		}
		if err := home.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		agreed(t, home)
	})
}

// agreed checks that a side that comes back learns that the other forgot it: it
// has no session any more, says why, and can be cleared alone.
func agreed(t *testing.T, c *cluster) {
	t.Helper()
	err := eventually.Is(t.Context(), soon, c.name+" to say that it was forgotten", func(ctx context.Context) error {
		var fc v1alpha1.ForeignCluster
		if err := c.get(ctx, peerOf(c), &fc); err != nil {
			return err
		}
		if conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected) == nil {
			return fmt.Errorf("it says that it is connected")
		}
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	if err := forget(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := empty(t.Context(), c, soon); err != nil {
		t.Errorf("alone: %v", err)
	}
}

// TestAnEndIsReceivedWhenThePeerReturns: a contract that one side ended, while the
// other was dead and without being forgotten, is over for both.
func TestAnEndIsReceivedWhenThePeerReturns(t *testing.T) {
	t.Parallel()
	for _, dead := range []string{abroadName, homeName} {
		t.Run(dead+" is dead", func(t *testing.T) {
			home, abroad := agents(t)
			name := peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
			if dead == abroadName {
				abroad.kill()
				if err := home.client.Delete(t.Context(), ask()); err != nil {
					t.Fatal(err)
				}
				if err := gone(t.Context(), home, &v1alpha1.PeeringRequest{ObjectMeta: ask().ObjectMeta}, soon); err != nil {
					t.Fatal(err)
				}
				if err := abroad.start(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				home.kill()
				var c v1alpha1.Contract
				if err := abroad.get(t.Context(), name, &c); err != nil {
					t.Fatal(err)
				}
				c.Spec.Termination = v1alpha1.TerminateNow
				if err := abroad.client.Update(t.Context(), &c); err != nil {
					t.Fatal(err)
				}
				if err := home.start(t.Context()); err != nil {
					t.Fatal(err)
				}
				err := eventually.Is(t.Context(), soon, "the request to say who ended it", func(ctx context.Context) error {
					var request v1alpha1.PeeringRequest
					if err := home.get(ctx, requestName, &request); err != nil {
						return eventually.Permanent(err)
					}
					for _, c := range request.Status.Conditions {
						if c.Type == v1alpha1.ConditionAccepted && c.Reason == "EndedByProvider" {
							return nil
						}
					}
					return fmt.Errorf("its conditions are %+v", request.Status.Conditions)
				})
				if err != nil {
					t.Error(err)
				}
			}
			// Neither forgot the other: the clusters are still joined, and nothing of the contract
			// is left.
			for _, c := range []*cluster{home, abroad} {
				if err := connected(t.Context(), c, soon); err != nil {
					t.Error(err)
				}
				err := eventually.Is(t.Context(), soon, "no contract in force at "+c.name, func(ctx context.Context) error {
					contracts, err := list[v1alpha1.ContractList](ctx, c)
					if err != nil {
						return err
					}
					for i := range contracts.Items {
						if contracts.Items[i].Status.Phase != "Closed" || contracts.Items[i].Status.Node != "" {
							return fmt.Errorf("there is %s", describe(&contracts.Items[i]))
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
			nodes, err := list[corev1.NodeList](t.Context(), home, virtualNodes())
			if err != nil || len(nodes.Items) > 0 {
				t.Errorf("home has %d virtual nodes, %v", len(nodes.Items), err)
			}
		})
	}
}

// TestARefusalIsReported: a provider's refusal is shown on the request.
func TestARefusalIsReported(t *testing.T) {
	home, abroad := agents(t)
	offer(t, abroad, "cpu=2", "memory=4Gi", "pods=10")
	if err := join(t.Context(), home, abroad); err != nil {
		t.Fatal(err)
	}
	if err := home.client.Create(t.Context(), ask("cpu=3")); err != nil {
		t.Fatal(err)
	}
	err := eventually.Is(t.Context(), soon, "the request to say no", func(ctx context.Context) error {
		var request v1alpha1.PeeringRequest
		if err := home.get(ctx, requestName, &request); err != nil {
			return eventually.Permanent(err)
		}
		for _, c := range request.Status.Conditions {
			if c.Type == v1alpha1.ConditionAccepted && c.Reason == camel(peering.ReasonPolicyRefused) {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", request.Status.Conditions)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAKilledAgentLeadsAgainAtOnce: it takes its own lease back, which the harness
// leaves as it is.
func TestAKilledAgentLeadsAgainAtOnce(t *testing.T) {
	home, _ := agents(t)
	lease := func(ctx context.Context) (l coordinationv1.Lease, err error) {
		return l, home.client.Get(ctx, ctrlclient.ObjectKey{Namespace: systemNamespace, Name: "entente-agent"}, &l)
	}
	home.kill()
	before, err := lease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := home.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(t.Context(), 5*time.Second, "the agent to lead", func(ctx context.Context) error {
		now, err := lease(ctx)
		if err == nil && !now.Spec.RenewTime.After(before.Spec.RenewTime.Time) {
			err = fmt.Errorf("lease was renewed at %s last", now.Spec.RenewTime)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("it leads %s after its start", time.Since(began).Round(10*time.Millisecond))
}
