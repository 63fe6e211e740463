package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/only"
)

// when runs do as soon as an object of a list's kind satisfies is, and returns the result.
func when(ctx context.Context, t *testing.T, s *Side, list ctrlclient.ObjectList, is func(ctrlclient.Object) bool, do func(context.Context) error, opts ...ctrlclient.ListOption) <-chan error {
	t.Helper()
	w, err := s.Client.Watch(ctx, list, opts...)
	OK(t, err)
	done := make(chan error, 1)
	go func() {
		defer w.Stop()
		for e := range w.ResultChan() {
			if o, isObject := e.Object.(ctrlclient.Object); isObject && e.Type != watch.Deleted && is(o) {
				done <- do(ctx)
				return
			}
		}
		done <- fmt.Errorf("nothing like it was seen among %T", list)
	}()
	return done
}

func every(ctrlclient.Object) bool { return true }

// TestAgentsKilledWhilePeering kills agents at each step of joining and peering:
// both sides end up with the same, once.
func TestAgentsKilledWhilePeering(t *testing.T) {
	only.Matrix(t, "package control tries it with agents that are processes")
	ctx, w := theStage.On(t)
	OK(t, w.Unpeer(ctx))

	t.Run("the issuer dies when it has used up the token", func(t *testing.T) {
		token, err := w.Abroad.CreateToken(ctx)
		OK(t, err)
		killed := when(ctx, t, w.Abroad, &corev1.SecretList{}, func(o ctrlclient.Object) bool {
			secret, is := o.(*corev1.Secret)
			return is && len(secret.Data["redeemed-by"]) > 0
		}, w.Abroad.KillAgent, ctrlclient.InNamespace(SystemNamespace))
		_, err = w.Home.Entente(ctx, "join", token)
		OK(t, <-killed)
		OK(t, w.Abroad.AgentReady(ctx, Restarted))
		if err != nil {
			t.Logf("joining ended with: %v", err)
			// The token was used up, by this cluster: it may use it again.
			_, err = w.Home.Entente(ctx, "join", token)
			OK(t, err)
		}
		OK(t, w.Join(ctx))
	})
	deaths := []struct {
		name string
		kill func(t *testing.T) <-chan error
	}{
		{"the provider dies when it is asked", func(t *testing.T) <-chan error {
			return when(ctx, t, w.Home, &v1alpha1.PeeringRequestList{}, every, w.Abroad.KillAgent)
		}},
		{"the consumer dies when the provider has signed", func(t *testing.T) <-chan error {
			return when(ctx, t, w.Abroad, &v1alpha1.ContractList{}, isNew(time.Now()), w.Home.KillAgent)
		}},
		{"both die when both have signed", func(t *testing.T) <-chan error {
			return when(ctx, t, w.Home, &v1alpha1.ContractList{}, isNew(time.Now()), func(ctx context.Context) error {
				return w.Each(ctx, func(ctx context.Context, s *Side) error { return s.KillAgent(ctx) })
			})
		}},
	}
	for _, death := range deaths {
		t.Run(death.name, func(t *testing.T) {
			OK(t, w.Join(ctx))
			if _, err := w.Home.Entente(ctx, "unpeer", w.Abroad.Name, "--now", "--yes"); err != nil {
				t.Fatal(err)
			}
			killed := death.kill(t)
			_, err := w.Home.Entente(ctx, "peer", w.Abroad.Name)
			OK(t, <-killed)
			if err != nil {
				t.Logf("peering ended with: %v", err)
				OK(t, w.Each(ctx, func(ctx context.Context, s *Side) error { return s.AgentReady(ctx, Restarted) }))
			}
			begin := time.Now()
			_, err = w.Peered(ctx, Restarted)
			OK(t, err)
			t.Logf("peered %s after the command ended", time.Since(begin).Round(100*time.Millisecond))
			home, abroad := TheContract(ctx, t, w)
			if home.Name != abroad.Name || home.Spec.Envelope != abroad.Spec.Envelope {
				t.Errorf("the contract is %s at home and %s abroad", home.Name, abroad.Name)
			}
		})
	}
}

// isNew reports whether an object was made after a time.
func isNew(after time.Time) func(ctrlclient.Object) bool {
	return func(o ctrlclient.Object) bool {
		return !o.GetCreationTimestamp().Time.Before(after.Truncate(time.Second))
	}
}
