// Package pods runs on a virtual node the tests that the virtual-kubelet project has for its
// providers, and those of Kubernetes' own end-to-end tests that are of pods and what they use.
package pods

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	. "github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

// Pods of the suites may do abroad what they may at home.
var theStage = &Installed{
	Config:   Config{Lab: "suites", Values: []string{"policy.podSecurity=privileged", "policy.podSecurityLevels={privileged,baseline,restricted}"}},
	Patience: 90 * time.Minute,
}

func TestMain(m *testing.M) { os.Exit(theStage.Main(m)) }

// storageClass is the class that the provider offers.
const storageClass = "disk"

// stage returns two clusters of which home uses the other, with storage, and the name of the virtual
// node, which is the only one that takes pods at home. binaries is what the images are made of.
func stage(t *testing.T) (ctx context.Context, w *World, node, binaries string) {
	t.Helper()
	if os.Getenv("ENTENTE_CONFORMANCE") == "" {
		t.Skip("the suites take an hour: make conformance")
	}
	binaries, err := lab.KubernetesTests(t.Context(), func(line string) { t.Log(line) })
	OK(t, err)
	ctx, w = theStage.On(t)
	Provisions(ctx, t, w.Abroad, storageClass, corev1.PersistentVolumeReclaimDelete)
	OfferStorage(ctx, t, w.Abroad, storageClass, "100Gi")
	loadImages(ctx, t, w, binaries)
	virtual, err := w.Peer(ctx)
	OK(t, err)
	defaultClass(ctx, t, w.Home)
	// Pods that the suites place on some node have to be on the virtual one.
	_, err = w.Home.Kubectl(ctx, "cordon", w.Home.Node())
	OK(t, err)
	return ctx, w, virtual.Name, binaries
}

// defaultClass has claims at home that name no class get their volumes where their pods are.
func defaultClass(ctx context.Context, t *testing.T, s *Side) {
	t.Helper()
	var class storagev1.StorageClass
	OK(t, s.Client.Get(ctx, ctrlclient.ObjectKey{Name: "entente"}, &class))
	metav1.SetMetaDataAnnotation(&class.ObjectMeta, "storageclass.kubernetes.io/is-default-class", "true")
	OK(t, s.Client.Update(ctx, &class))
}

// results is the file with the results of a suite.
func results(t *testing.T, w *World) string {
	t.Helper()
	dir := filepath.Join(w.Root, ".build/conformance", time.Now().UTC().Format("20060102-150405"), t.Name())
	OK(t, os.MkdirAll(dir, 0o755))
	return dir
}

// only is a regular expression of the tests to run, for one that looks for a fault.
func only() string { return cmp.Or(os.Getenv("ENTENTE_CONFORMANCE_FOCUS"), ".") }

func plural(n int, of string) string { return fmt.Sprintf("%d %ss", n, of) }
