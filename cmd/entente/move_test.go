package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/move"
)

// movable is a world in which shop has a volume at the provider, data-db-0, and one at home, cart.
func movable(more ...runtime.Object) *world {
	w := peered()
	abroad, home, elsewhere := heldVolume("shop", "data-db-0", w.provider.id), heldVolume("shop", "cart", w.provider.id), heldVolume("bank", "ledger", w.provider.id)
	home[0].(*corev1.PersistentVolume).Spec.CSI.Driver = "disk.example"
	objects := append(more,
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "entente-system", Name: "agent", Labels: map[string]string{"app.kubernetes.io/name": "entente", "app.kubernetes.io/component": "agent"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "registry.example/entente:v1"}}},
		},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "entente"}, Provisioner: v1alpha1.VolumeDriver},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "both"}, Provisioner: v1alpha1.VolumeDriver, Parameters: map[string]string{"homeClass": "disk"}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Provisioner: "disk.example"},
	)
	for _, volume := range [][]runtime.Object{abroad, home, elsewhere} {
		pv, claim := volume[0].(*corev1.PersistentVolume), volume[1].(*corev1.PersistentVolumeClaim)
		claim.Spec.VolumeName, claim.Status.Phase = pv.Name, corev1.ClaimBound
		claim.Spec.StorageClassName = new("entente")
		if pv.Spec.CSI.Driver == "disk.example" {
			claim.Spec.StorageClassName = new("disk")
		}
		objects = append(objects, pv, claim)
	}
	w.kube = fake.NewClientset(objects...)
	return w
}

func TestImpossibleMovesAreRefusedBeforeTheyBegin(t *testing.T) {
	user := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-0"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"},
		}}}},
	}
	for name, tc := range map[string]struct {
		args string
		with []runtime.Object
		code int
		says string
	}{
		"nowhere":                              {"data-db-0", nil, exit.Usage, "name the cluster to move to"},
		"to and fro":                           {"data-db-0 --to home --abort", nil, exit.Usage, "name the cluster to move to"},
		"to nobody":                            {"data-db-0 --to nobody", nil, exit.Usage, "no peer nobody is known"},
		"no claim":                             {"none --to home", nil, exit.Failed, "get claim shop/none"},
		"where it is":                          {"data-db-0 --to provider", nil, exit.OK, "is at provider: nothing to do"},
		"home, where it is":                    {"cart --to home", nil, exit.OK, "is at home: nothing to do"},
		"home without a class":                 {"data-db-0 --to home", nil, exit.Usage, "names no class for volumes in this cluster"},
		"home, to none":                        {"data-db-0 --to home --storage-class none", nil, exit.Failed, "get storage class none"},
		"abroad to a class of home":            {"cart --to provider --storage-class disk", nil, exit.Usage, "are in this cluster"},
		"while a pod uses it":                  {"data-db-0 --to home --storage-class disk", []runtime.Object{user}, exit.Failed, "pods use claim shop/data-db-0: db-0\n  next: scale their controller down"},
		"of a namespace that stays":            {"ledger -n bank --to home --storage-class disk", nil, exit.Failed, "cannot run at provider"},
		"in a dry run":                         {"data-db-0 --to home --storage-class both --dry-run", nil, exit.OK, "would copy volume entente-uid-data-db-0 (10Gi)"},
		"from home, in a dry run":              {"cart --to provider --dry-run --delete-source", nil, exit.OK, "of storage class entente at provider, compare both, bind claim cart to that, and delete the old one"},
		"to abort a move that was not started": {"data-db-0 --abort", nil, exit.OK, "is not being moved"},
		"as an impossible user":                {"data-db-0 --to home --user -7", nil, exit.Usage, "name the cluster"},
		"of a claim that is malformed, 2":      {"a b --to home", nil, exit.Usage, "want CLAIM"},
	} {
		t.Run(name, func(t *testing.T) {
			w := movable(tc.with...)
			args := append([]string{"move", "volume"}, strings.Fields(tc.args)...)
			if !strings.Contains(tc.args, "-n ") {
				args = append(args, "-n", "shop")
			}
			out, errOut, code := w.run(t, "", args...)
			if code != tc.code || !strings.Contains(out+errOut, tc.says) {
				t.Errorf("exit %d, printed\n%s%s", code, out, errOut)
			}
			for _, a := range w.kube.(*fake.Clientset).Actions() {
				if a.GetVerb() != "get" && a.GetVerb() != "list" {
					t.Errorf("it does %s %s", a.GetVerb(), a.GetResource().Resource)
				}
			}
		})
	}
}

func TestAStartedMoveContinuesOnlyToTheSameCluster(t *testing.T) {
	w := movable()
	begin := []string{"move", "volume", "data-db-0", "-n", "shop", "--to", "home", "--storage-class", "disk"}
	// No kubelet runs the pods, so it waits.
	out, errOut, code := w.run(t, "", begin...)
	if code != exit.Timeout || !strings.Contains(out, "Asked for a volume of storage class disk at home") || !strings.Contains(errOut, "waiting for the receiver to run") {
		t.Fatalf("exit %d, printed\n%s%s", code, out, errOut)
	}
	kube := w.kube.CoreV1()
	pod, err := kube.Pods("shop").Get(t.Context(), move.Name("shop", "data-db-0")+"-to", metav1.GetOptions{})
	if err != nil || pod.Spec.Containers[0].Image != "registry.example/entente:v1" || pod.Annotations[v1alpha1.AnnotationPodStrategy] != "Local" {
		t.Errorf("the receiver is %+v, %v", pod, err)
	}
	if out, errOut, code := w.run(t, "", begin...); code != exit.Timeout || !strings.Contains(out, "Continuing the move of claim shop/data-db-0 to home") {
		t.Errorf("exit %d, printed\n%s%s", code, out, errOut)
	}
	if out, errOut, code := w.run(t, "", "move", "volume", "data-db-0", "-n", "shop", "--to", "provider"); code != exit.Usage || !strings.Contains(errOut, "is being moved to home") {
		t.Errorf("exit %d, printed\n%s%s", code, out, errOut)
	}
	out, errOut, code = w.run(t, "", "move", "volume", "data-db-0", "-n", "shop", "--abort")
	if code != exit.OK || !strings.Contains(out, "has volume entente-uid-data-db-0, as before") {
		t.Errorf("exit %d, printed\n%s%s", code, out, errOut)
	}
	if _, err := kube.PersistentVolumeClaims("shop").Get(t.Context(), "data-db-0", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
