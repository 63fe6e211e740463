package e2e

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/disk"
)

// StorageOf is the resource name of storage of a class.
func StorageOf(class string) corev1.ResourceName {
	return corev1.ResourceName(class + ".storageclass.storage.k8s.io/requests.storage")
}

// Provisions has a cluster provision volumes of a class while the test runs.
func Provisions(ctx context.Context, t testing.TB, s *Side, class string, reclaim corev1.PersistentVolumeReclaimPolicy) {
	t.Helper()
	OK(t, disk.Class(ctx, s.Client, class, reclaim))
	t.Cleanup(func() {
		OK(t, ctrlclient.IgnoreNotFound(s.Client.Delete(context.WithoutCancel(ctx), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}})))
	})
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { disk.Run(ctx, s.Client, func(err error) { t.Logf("provisioner of %s: %v", s.Name, err) }) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// OfferStorage adds storage of a class to what a cluster's policy offers.
func OfferStorage(ctx context.Context, t testing.TB, s *Side, class, amount string) {
	t.Helper()
	var policy v1alpha1.PeeringPolicy
	OK(t, s.Client.Get(ctx, ctrlclient.ObjectKey{Name: "entente-default"}, &policy))
	limits := maps.Clone(policy.Spec.Limits.Resources)
	if limits == nil {
		limits = corev1.ResourceList{}
	}
	limits[StorageOf(class)] = resource.MustParse(amount)
	policy.Spec.Limits.Resources = limits
	OK(t, s.Client.Update(ctx, &policy))
}

// AskForStorage has home's contract include an amount of storage of a class that abroad offers.
func AskForStorage(ctx context.Context, t testing.TB, w *World, class, amount string) {
	t.Helper()
	kind, want := StorageOf(class), resource.MustParse(amount)
	home, _ := TheContract(ctx, t, w)
	if q := home.Spec.Resources[kind]; q.Cmp(want) == 0 {
		return
	}
	var requests v1alpha1.PeeringRequestList
	OK(t, w.Home.Client.List(ctx, &requests))
	if len(requests.Items) != 1 {
		t.Fatalf("there are %d PeeringRequests, want one", len(requests.Items))
	}
	request := &requests.Items[0]
	request.Spec.Resources = maps.Clone(home.Spec.Resources)
	request.Spec.Resources[kind] = want
	OK(t, w.Home.Client.Update(ctx, request))
	OK(t, w.Until(ctx, Soon, "the contract to have storage", func(ctx context.Context) (string, error) {
		home, abroad := TheContract(ctx, t, w)
		for _, c := range []v1alpha1.Contract{home, abroad} {
			if q := c.Spec.Resources[kind]; q.Cmp(want) != 0 {
				return fmt.Sprintf("it has %v", c.Spec.Resources), nil
			}
		}
		return "", nil
	}))
}
