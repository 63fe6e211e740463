package store

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/peering"
)

func newForgotten(t *testing.T) (*Forgotten, *clock) {
	t.Helper()
	c := &clock{now: start}
	return &Forgotten{Client: newClient(t), Namespace: "entente-system", Now: c.Now}, c
}

func (f *Forgotten) knows(t *testing.T, id peering.ClusterID) bool {
	t.Helper()
	_, ok, err := f.Since(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestForgottenClusterIsKeptForATime(t *testing.T) {
	t.Parallel()
	f, clock := newForgotten(t)
	if f.knows(t, "milan") {
		t.Error("a stranger counts as forgotten")
	}
	if err := f.AddByPolicy(t.Context(), "milan"); err != nil {
		t.Fatal(err)
	}
	if at, ok, err := f.Since(t.Context(), "milan"); err != nil || !ok || !at.Equal(start) {
		t.Errorf("it was forgotten at %s, %t: %v", at, ok, err)
	}
	clock.pass(forgottenKept - time.Second)
	restarted := &Forgotten{Client: f.Client, Namespace: f.Namespace, Now: f.Now}
	if !f.knows(t, "milan") || !restarted.knows(t, "milan") {
		t.Error("it is kept for less than its time")
	}
	clock.pass(time.Second)
	if f.knows(t, "milan") || restarted.knows(t, "milan") {
		t.Error("it is kept for longer than its time")
	}
	if err := f.Add(t.Context(), "rome"); err != nil {
		t.Fatal(err)
	}
	if n := len(f.at); n != 1 {
		t.Errorf("%d are kept, want the one that did not lapse", n)
	}
	if err := f.Remove(t.Context(), "rome"); err != nil {
		t.Fatal(err)
	}
	if again := (&Forgotten{Client: f.Client, Namespace: f.Namespace, Now: f.Now}); f.knows(t, "rome") || again.knows(t, "rome") {
		t.Error("it counts as forgotten still")
	}
}

func TestForgottenClustersAreBounded(t *testing.T) {
	t.Parallel()
	f, clock := newForgotten(t)
	full := &corev1.Secret{Data: map[string][]byte{"rome": []byte("no time")}}
	full.Namespace, full.Name = f.Namespace, ForgottenSecret
	for i := range maxForgotten {
		full.Data[fmt.Sprintf("c%031d", i)] = []byte(start.Add(time.Duration(i) * time.Second).Format(time.RFC3339Nano))
	}
	if err := f.Client.Create(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	clock.pass(maxForgotten * time.Second)
	if err := f.Add(t.Context(), "milan"); err != nil {
		t.Fatal(err)
	}
	if !f.knows(t, "milan") || f.knows(t, "c0000000000000000000000000000000") || !f.knows(t, "c0000000000000000000000000000001") || f.knows(t, "rome") {
		t.Error("not the oldest made room for the newest")
	}
	var kept corev1.Secret
	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(full), &kept); err != nil {
		t.Fatal(err)
	}
	if len(kept.Data) != maxForgotten || kept.Size() > 512<<10 {
		t.Errorf("%d are kept in %d bytes", len(kept.Data), kept.Size())
	}
}

// TestClusterForgottenByAPersonStaysForgotten has a person forget a cluster, and policies others,
// later and more than are kept.
func TestClusterForgottenByAPersonStaysForgotten(t *testing.T) {
	t.Parallel()
	f, clock := newForgotten(t)
	person := func(id peering.ClusterID) bool {
		t.Helper()
		is, err := f.ByPerson(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return is
	}
	if err := f.Add(t.Context(), "milan"); err != nil {
		t.Fatal(err)
	}
	clock.pass(forgottenKept)
	if !person("milan") || f.knows(t, "milan") {
		t.Error("after its time a policy may trust it, or it counts as forgotten just now")
	}
	full := &corev1.Secret{}
	if err := f.Client.Get(t.Context(), client.ObjectKey{Namespace: f.Namespace, Name: ForgottenSecret}, full); err != nil {
		t.Fatal(err)
	}
	for i := range maxForgotten {
		full.Data[fmt.Sprintf("c%031d", i)] = []byte(clock.Now().Add(time.Duration(i)*time.Second).Format(time.RFC3339Nano) + byPolicy)
	}
	if err := f.Client.Update(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	clock.pass(maxForgotten * time.Second)
	f.loaded = false
	if err := f.AddByPolicy(t.Context(), "rome"); err != nil {
		t.Fatal(err)
	}
	if !person("milan") || !f.knows(t, "rome") || f.knows(t, "c0000000000000000000000000000000") || len(f.at) != maxForgotten {
		t.Errorf("%d are kept, milan as a person's %t", len(f.at), person("milan"))
	}
	if err := f.Remove(t.Context(), "milan"); err != nil {
		t.Fatal(err)
	}
	if person("milan") {
		t.Error("an administrator took it back, and it is still recorded")
	}
}
