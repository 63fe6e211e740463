package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/only"
)

const diskClass = "disk"

var diskStorage = StorageOf(diskClass)

// offerStorage makes abroad offer storage, and home's contract ask for some.
func offerStorage(ctx context.Context, t *testing.T, w *World, amount string) {
	t.Helper()
	Provisions(ctx, t, w.Abroad, diskClass, corev1.PersistentVolumeReclaimDelete)
	OfferStorage(ctx, t, w.Abroad, diskClass, amount)
	peered(ctx, t, w)
	AskForStorage(ctx, t, w, diskClass, amount)
}

func storageTemplate(name, class, amount string) corev1.PersistentVolumeClaim {
	return corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(amount)}},
		},
	}
}

// stored is a StatefulSet of pods with a volume each, and one that ends with the pod.
func stored(replicas int32) (*appsv1.StatefulSet, *corev1.Service) {
	db, service := set(shop, "db", replicas)
	db.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{storageTemplate("data", "entente", "1Gi")}
	spec := &db.Spec.Template.Spec
	// A directory of a node belongs to root.
	spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(0))}
	spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "scratch", MountPath: "/scratch"}}
	spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: storageTemplate("", "entente", "1Gi").Spec},
	}}}}
	return db, service
}

// TestVolumesFollowTheirPods runs a StatefulSet with volumes abroad. Its data survives the
// replacement of its pods, and the end of offloading and of the peering; it is deleted on request.
func TestVolumesFollowTheirPods(t *testing.T) {
	ctx, w := theStage.On(t)
	offerStorage(ctx, t, w, "10Gi")
	Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	t.Cleanup(func() { w.noVolumes(context.WithoutCancel(ctx), t) })
	db, service := stored(2)
	OK(t, w.Home.Create(ctx, service, db))
	pods, err := w.Home.PodsReady(ctx, Scheduled, shop, db.Labels, 2)
	OK(t, err)
	if home, away := Split(pods); len(home) > 0 || len(away) != 2 {
		t.Fatalf("%d pods run at home and %d abroad, want 2 abroad", len(home), len(away))
	}
	for _, p := range pods {
		_, err := w.Home.InPod(ctx, shop, p.Name, "/tool", "write", "/data/name", p.Name)
		OK(t, err)
		_, err = w.Home.InPod(ctx, shop, p.Name, "/tool", "write", "/scratch/name", p.Name)
		OK(t, err)
	}
	reads := func(t *testing.T) {
		t.Helper()
		pods, err := w.Home.PodsReady(ctx, Scheduled, shop, db.Labels, 2)
		OK(t, err)
		for _, p := range pods {
			if text, err := w.Home.InPod(ctx, shop, p.Name, "/tool", "cat", "/data/name"); err != nil || text != p.Name {
				t.Errorf("%s reads %q, %v", p.Name, text, err)
			}
		}
	}
	remote, err := w.RemoteNamespace(ctx, shop)
	OK(t, err)

	t.Run("both sides count four volumes", func(t *testing.T) {
		OK(t, w.Until(ctx, Soon, "the volumes to be counted", func(ctx context.Context) (string, error) {
			home, abroad := TheContract(ctx, t, w)
			for _, c := range []v1alpha1.Contract{home, abroad} {
				if q := c.Status.Used[diskStorage]; q.Cmp(resource.MustParse("4Gi")) != 0 {
					return fmt.Sprintf("%s counts %s", c.Spec.Role, q.String()), nil
				}
			}
			return "", nil
		}))
	})
	t.Run("new pods find what the old ones wrote", func(t *testing.T) {
		_, err := w.Home.Kubectl(ctx, "delete", "pod", "-n", shop, "-l", "app=db", "--wait=true")
		OK(t, err)
		reads(t)
		OK(t, w.Until(ctx, Soon, "the volumes of the old pods alone to go", func(ctx context.Context) (string, error) {
			n, err := w.Abroad.claims(ctx, remote)
			if err != nil || n == 4 {
				return "", err
			}
			return fmt.Sprintf("%d claims abroad, want 4", n), nil
		}))
	})
	t.Run("a claim that asks for more gets it", func(t *testing.T) {
		_, err := w.Home.Kubectl(ctx, "patch", "pvc", "-n", shop, "data-db-0", "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
		OK(t, err)
		OK(t, w.Until(ctx, Scheduled, "the claim to have more", func(ctx context.Context) (string, error) {
			var claim corev1.PersistentVolumeClaim
			if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: shop, Name: "data-db-0"}, &claim); err != nil {
				return "", err
			}
			if q := claim.Status.Capacity[corev1.ResourceStorage]; q.Cmp(resource.MustParse("2Gi")) != 0 {
				return "it has " + q.String(), nil
			}
			return "", nil
		}))
	})
	t.Run("a claim that exceeds the contract says so", func(t *testing.T) {
		claim := storageTemplate("large", "entente", "100Gi")
		claim.Namespace = shop
		pod := WebPod(shop, "large", map[string]string{"app": "large"})
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "large"}}}}
		OK(t, w.Home.Create(ctx, &claim, pod))
		OK(t, w.Until(ctx, Soon, "an event that says why", func(ctx context.Context) (string, error) {
			text, err := w.Home.Kubectl(ctx, "get", "events", "-n", shop, "--field-selector", "involvedObject.name=large", "-o", "custom-columns=R:.reason,M:.message")
			if err != nil || strings.Contains(text, "the contract grants 10Gi of storage class disk") {
				return "", err
			}
			return text, nil
		}))
		OK(t, w.Home.Client.Delete(ctx, pod))
		OK(t, w.Home.Client.Delete(ctx, &claim))
	})
	t.Run("the end of offloading and its begin again lose nothing", func(t *testing.T) {
		_, err := w.Home.Kubectl(ctx, "scale", "-n", shop, "statefulset/db", "--replicas=0")
		OK(t, err)
		_, err = w.Home.PodsReady(ctx, Scheduled, shop, db.Labels, 0)
		OK(t, err)
		_, err = w.Home.Entente(ctx, "unoffload", "namespace", shop)
		OK(t, err)
		OK(t, w.Until(ctx, Soon, "the volumes to be kept", func(ctx context.Context) (string, error) {
			var ns corev1.Namespace
			if err := w.Abroad.Client.Get(ctx, ctrlclient.ObjectKey{Name: remote}, &ns); err != nil {
				return "", err
			}
			if ns.Labels[v1alpha1.LabelRetained] == "" || !ns.DeletionTimestamp.IsZero() {
				return fmt.Sprintf("its labels are %v", ns.Labels), nil
			}
			return "", nil
		}))
		OK(t, w.Offload(ctx, shop, "--strategy", "Remote"))
		_, err = w.Home.Kubectl(ctx, "scale", "-n", shop, "statefulset/db", "--replicas=2")
		OK(t, err)
		reads(t)
	})
	t.Run("a volume moves home and back", func(t *testing.T) {
		only.Matrix(t, "a minute and a half")
		Provisions(ctx, t, w.Home, diskClass, corev1.PersistentVolumeReclaimDelete)
		_, err := w.Home.Entente(ctx, "move", "volume", "data-db-0", "-n", shop, "--to", "home", "--storage-class", diskClass)
		if err == nil || !strings.Contains(err.Error(), "db-0") {
			t.Errorf("a volume that a pod uses: %v", err)
		}
		_, err = w.Home.Kubectl(ctx, "scale", "-n", shop, "statefulset/db", "--replicas=0")
		OK(t, err)
		_, err = w.Home.PodsReady(ctx, Scheduled, shop, db.Labels, 0)
		OK(t, err)
		moves(ctx, t, w.Home, "data-db-0", "home", "--storage-class", diskClass, "--delete-source")
		readAtHome(ctx, t, w.Home, "data-db-0", "/data/name", "db-0")
		if n, err := w.Abroad.claims(ctx, remote); err != nil || n != 1 {
			t.Errorf("%d claims abroad, %v; want that of db-1", n, err)
		}
		moves(ctx, t, w.Home, "data-db-0", w.Abroad.Name, "--storage-class", "entente", "--delete-source")
		_, err = w.Home.Kubectl(ctx, "scale", "-n", shop, "statefulset/db", "--replicas=2")
		OK(t, err)
		reads(t)
	})
	t.Run("a claim that is deleted leaves its volume, one of policy Delete does not", func(t *testing.T) {
		_, err := w.Home.Kubectl(ctx, "scale", "-n", shop, "statefulset/db", "--replicas=0")
		OK(t, err)
		_, err = w.Home.PodsReady(ctx, Scheduled, shop, db.Labels, 0)
		OK(t, err)
		var claim corev1.PersistentVolumeClaim
		OK(t, w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: shop, Name: "data-db-1"}, &claim))
		_, err = w.Home.Kubectl(ctx, "patch", "pv", claim.Spec.VolumeName, "--type=merge", "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
		OK(t, err)
		_, err = w.Home.Kubectl(ctx, "delete", "pvc", "-n", shop, "data-db-0", "data-db-1")
		OK(t, err)
		OK(t, w.Until(ctx, Soon, "one volume to be deleted at home and abroad", func(ctx context.Context) (string, error) {
			n, err := w.Abroad.claims(ctx, remote)
			if err != nil {
				return "", err
			}
			err = w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Name: claim.Spec.VolumeName}, &corev1.PersistentVolume{})
			if n == 1 && apierrors.IsNotFound(err) {
				return "", nil
			}
			return fmt.Sprintf("%d claims abroad, want 1; that at home: %v", n, err), nil
		}))
	})
	t.Run("the end of offloading deletes the rest on request", func(t *testing.T) {
		text, err := w.Home.Entente(ctx, "unoffload", "namespace", shop, "--delete-volumes", "--yes")
		OK(t, err)
		if !strings.Contains(text, "of claim "+shop+"/data-db-0, which is gone") || !strings.Contains(text, "Deleted 1 volume") {
			t.Errorf("it says\n%s", text)
		}
		if n, err := w.Abroad.claims(ctx, remote); err != nil || n != 0 {
			t.Errorf("%d claims are left abroad, %v", n, err)
		}
	})
}

// TestAMoveSurvivesKills moves a volume home and back. The command is killed again and again on each
// way, a pod of the copy is lost, one move is aborted, and the data at the end is the same as before.
func TestAMoveSurvivesKills(t *testing.T) {
	only.Matrix(t, "it takes four minutes")
	ctx, w := theStage.On(t)
	offerStorage(ctx, t, w, "10Gi")
	Provisions(ctx, t, w.Home, diskClass, corev1.PersistentVolumeReclaimDelete)
	Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	t.Cleanup(func() { w.noVolumes(context.WithoutCancel(ctx), t) })
	db, service := stored(1)
	OK(t, w.Home.Create(ctx, service, db))
	scale := func(n int) {
		t.Helper()
		_, err := w.Home.Kubectl(ctx, "scale", "-n", shop, "statefulset/db", fmt.Sprintf("--replicas=%d", n))
		OK(t, err)
		_, err = w.Home.PodsReady(ctx, Scheduled, shop, db.Labels, n)
		OK(t, err)
	}
	scale(1)
	for i := range 40 {
		_, err := w.Home.InPod(ctx, shop, "db-0", "/tool", "write", fmt.Sprintf("/data/file-%d", i), strings.Repeat(fmt.Sprint(i), 1000))
		OK(t, err)
	}
	scale(0)

	t.Run("one is given up", func(t *testing.T) {
		w.Home.killed(ctx, t, 6*time.Second, "move", "volume", "data-db-0", "-n", shop, "--to", "home", "--storage-class", diskClass)
		text, err := w.Home.Entente(ctx, "move", "volume", "data-db-0", "-n", shop, "--abort")
		OK(t, err)
		t.Log(text)
		scale(1)
		if text, err := w.Home.InPod(ctx, shop, "db-0", "/tool", "cat", "/data/file-39"); err != nil || text != strings.Repeat("39", 1000) {
			t.Errorf("the pod reads %.20q, %v", text, err)
		}
		scale(0)
	})
	t.Run("home, and the sender is lost after the claim was locked", func(t *testing.T) {
		args := []string{"move", "volume", "data-db-0", "-n", shop, "--to", "home", "--storage-class", diskClass, "--delete-source"}
		w.Home.killedAt(ctx, t, "is locked", args...)
		_, err := w.Home.Kubectl(ctx, "delete", "pod", "-n", shop, "-l", "entente.dev/move-side=from", "--wait=true")
		OK(t, err)
		var locked, later corev1.PersistentVolumeClaim
		OK(t, w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: shop, Name: "data-db-0"}, &locked))
		_, err = w.Home.Kubectl(ctx, "scale", "-n", shop, "statefulset/db", "--replicas=1")
		OK(t, err)
		// Kubernetes makes no pod for a claim that is being deleted, and says so.
		OK(t, w.Until(ctx, Soon, "the StatefulSet to wait", func(ctx context.Context) (string, error) {
			text, err := w.Home.Kubectl(ctx, "get", "events", "-n", shop, "--field-selector", "involvedObject.kind=StatefulSet", "-o", "custom-columns=R:.reason,M:.message")
			if err != nil || strings.Contains(text, "being deleted") {
				return "", err
			}
			return text, nil
		}))
		OK(t, w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: shop, Name: "data-db-0"}, &later))
		if later.UID != locked.UID || later.DeletionTimestamp == nil {
			t.Errorf("the claim was %s and is %s, deleted %v", locked.UID, later.UID, later.DeletionTimestamp)
		}
		scale(0)
		moves(ctx, t, w.Home, "data-db-0", "home", args[7:]...)
		readAtHome(ctx, t, w.Home, "data-db-0", "/data/file-7", strings.Repeat("7", 1000))
	})
	t.Run("back, with the command killed again and again", func(t *testing.T) {
		args := []string{"move", "volume", "data-db-0", "-n", shop, "--to", w.Abroad.Name, "--storage-class", "entente", "--delete-source"}
		kills := 0
		for ; kills < 20 && !w.Home.killed(ctx, t, 1500*time.Millisecond, args...); kills++ {
			if kills == 3 { // a pod of the copy, if it is there
				_, err := w.Home.Kubectl(ctx, "delete", "pod", "-n", shop, "-l", "entente.dev/move-side=to", "--wait=false")
				OK(t, err)
			}
		}
		t.Logf("the command was killed %d times", kills)
		if kills == 20 {
			moves(ctx, t, w.Home, "data-db-0", w.Abroad.Name, args[7:]...)
		}
	})
	scale(1)
	for i := range 40 {
		if text, err := w.Home.InPod(ctx, shop, "db-0", "/tool", "cat", fmt.Sprintf("/data/file-%d", i)); err != nil || text != strings.Repeat(fmt.Sprint(i), 1000) {
			t.Errorf("file %d has %.20q, %v", i, text, err)
		}
	}
}

// killed runs the command and kills it after a time; done says that it was done before.
func (s *Side) killed(ctx context.Context, t *testing.T, after time.Duration, args ...string) (done bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, after)
	defer cancel()
	text, err := s.Entente(ctx, args...)
	t.Logf("after %s:\n%s", after, text)
	if err != nil && ctx.Err() == nil {
		t.Fatalf("it ends by itself: %v", err)
	}
	return err == nil
}

// killedAt runs the command and kills it once it says something.
func (s *Side) killedAt(ctx context.Context, t *testing.T, says string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	text, err := s.Entente(Watching(ctx, &listener{says: says, heard: cancel}), args...)
	if err == nil || !strings.Contains(text, says) && ctx.Err() == nil {
		t.Fatalf("it was not killed: %v\n%s", err, text)
	}
}

// listener calls heard once something is written.
type listener struct {
	says  string
	text  strings.Builder
	heard func()
}

func (l *listener) Write(p []byte) (int, error) {
	if l.text.Write(p); strings.Contains(l.text.String(), l.says) {
		l.heard()
	}
	return len(p), nil
}

// moves moves the volume of a claim of shop.
func moves(ctx context.Context, t *testing.T, s *Side, claim, to string, flags ...string) {
	t.Helper()
	begun := time.Now()
	text, err := s.Entente(ctx, append([]string{"move", "volume", claim, "-n", shop, "--to", to}, flags...)...)
	OK(t, err)
	t.Logf("moved to %s in %s\n%s", to, time.Since(begun).Round(100*time.Millisecond), text)
	if !strings.Contains(text, "Both sides read the same") {
		t.Errorf("it does not print the digest")
	}
	var left corev1.ConfigMapList
	OK(t, s.Client.List(ctx, &left, ctrlclient.InNamespace(shop), ctrlclient.HasLabels{"entente.dev/move"}))
	if len(left.Items) > 0 {
		t.Errorf("%d records are left", len(left.Items))
	}
}

// readAtHome reads a file of a claim of shop in a pod at home.
func readAtHome(ctx context.Context, t *testing.T, s *Side, claim, file, want string) {
	t.Helper()
	p := WebPod(shop, "reader", map[string]string{"app": "reader"})
	p.Annotations = map[string]string{v1alpha1.AnnotationPodStrategy: string(v1alpha1.StrategyLocal)}
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(0))}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	OK(t, s.Create(ctx, p))
	_, err := s.PodsReady(ctx, Scheduled, shop, p.Labels, 1)
	OK(t, err)
	if text, err := s.InPod(ctx, shop, p.Name, "/tool", "cat", file); err != nil || text != want {
		t.Errorf("at home a pod reads %q, %v; want %q", text, err, want)
	}
	_, err = s.Kubectl(ctx, "delete", "pod", "-n", shop, p.Name, "--wait=true")
	OK(t, err)
}

// TestVolumesOutliveThePeering ends a peering while a pod has a volume, and peers again.
func TestVolumesOutliveThePeering(t *testing.T) {
	ctx, w := theStage.On(t)
	offerStorage(ctx, t, w, "10Gi")
	Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	t.Cleanup(func() { w.noVolumes(context.WithoutCancel(ctx), t) })
	db, service := stored(1)
	OK(t, w.Home.Create(ctx, service, db))
	_, err := w.Home.PodsReady(ctx, Scheduled, shop, db.Labels, 1)
	OK(t, err)
	_, err = w.Home.InPod(ctx, shop, "db-0", "/tool", "write", "/data/name", "what was before")
	OK(t, err)
	remote, err := w.RemoteNamespace(ctx, shop)
	OK(t, err)

	_, err = w.Home.Entente(ctx, "unpeer", w.Abroad.Name, "--yes")
	OK(t, err)
	OK(t, w.Until(ctx, Scheduled, "the volume to be all that is left abroad", func(ctx context.Context) (string, error) {
		var claims corev1.PersistentVolumeClaimList
		if err := w.Abroad.Client.List(ctx, &claims, ctrlclient.InNamespace(remote), ctrlclient.HasLabels{v1alpha1.LabelRetained}); err != nil {
			return "", err
		}
		var contracts v1alpha1.ContractList
		if err := w.Abroad.Client.List(ctx, &contracts); err != nil {
			return "", err
		}
		for _, c := range contracts.Items {
			if c.Status.Phase != "Closed" {
				return fmt.Sprintf("contract %s is %s", c.Name, c.Status.Phase), nil
			}
		}
		// Also the ephemeral one of the pod that ended while the provider could not be notified.
		if len(claims.Items) != 2 || claims.Items[0].Annotations[v1alpha1.AnnotationRetainedSince] == "" {
			return fmt.Sprintf("%d claims are kept, want two", len(claims.Items)), nil
		}
		return "", nil
	}))

	offerStorage(ctx, t, w, "10Gi")
	_, err = w.Home.PodsReady(ctx, Scheduled, shop, db.Labels, 1)
	OK(t, err)
	if text, err := w.Home.InPod(ctx, shop, "db-0", "/tool", "cat", "/data/name"); err != nil || text != "what was before" {
		t.Errorf("after the peering ended and began again the pod reads %q, %v", text, err)
	}
	OK(t, w.Until(ctx, Soon, "the volume of the old pod alone to go", func(ctx context.Context) (string, error) {
		if n, err := w.Abroad.claims(ctx, remote); err != nil || n != 2 {
			return fmt.Sprintf("%d claims abroad, want 2", n), err
		}
		return "", nil
	}))
}

// TestAPodAtHomeGetsAVolumeOfHome runs a pod with a claim of our provisioner at home.
func TestAPodAtHomeGetsAVolumeOfHome(t *testing.T) {
	ctx, w := theStage.On(t)
	Provisions(ctx, t, w.Home, diskClass, corev1.PersistentVolumeReclaimDelete)
	const cellar = "cellar"
	OK(t, w.Home.CreateNamespace(ctx, cellar))
	mode, keep := storagev1.VolumeBindingWaitForFirstConsumer, corev1.PersistentVolumeReclaimDelete
	both := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "both"}, Provisioner: v1alpha1.VolumeDriver, VolumeBindingMode: &mode, ReclaimPolicy: &keep,
		Parameters: map[string]string{"homeClass": diskClass},
	}
	claim := storageTemplate("data", "both", "1Gi")
	claim.Namespace = cellar
	pod := func(name string) *corev1.Pod {
		p := WebPod(cellar, name, map[string]string{"app": "wine"})
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: new(int64(0))}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		return p
	}
	first := pod("first")
	OK(t, w.Home.Create(ctx, both, &claim, first))
	t.Cleanup(func() { OK(t, w.Home.Client.Delete(context.WithoutCancel(ctx), both)) })
	_, err := w.Home.PodsReady(ctx, Scheduled, cellar, first.Labels, 1)
	OK(t, err)
	_, err = w.Home.InPod(ctx, cellar, first.Name, "/tool", "write", "/data/year", "1982")
	OK(t, err)
	_, err = w.Home.Kubectl(ctx, "delete", "pod", "-n", cellar, first.Name, "--wait=true")
	OK(t, err)
	OK(t, w.Home.Create(ctx, pod("second")))
	_, err = w.Home.PodsReady(ctx, Scheduled, cellar, first.Labels, 1)
	OK(t, err)
	if text, err := w.Home.InPod(ctx, cellar, "second", "/tool", "cat", "/data/year"); err != nil || text != "1982" {
		t.Errorf("the second pod reads %q, %v", text, err)
	}
	if n, err := w.Home.claims(ctx, SystemNamespace); err != nil || n != 0 {
		t.Errorf("%d claims are left in the agent's namespace, %v", n, err)
	}
	OK(t, w.DeleteNamespace(ctx, cellar))
	OK(t, w.Until(ctx, Soon, "the volume to go as its policy says", func(ctx context.Context) (string, error) {
		var left corev1.PersistentVolumeList
		if err := w.Home.Client.List(ctx, &left); err != nil || len(left.Items) == 0 {
			return "", err
		}
		return fmt.Sprintf("%d volumes are left", len(left.Items)), nil
	}))
}

// noVolumes deletes all volumes: what uses them at home, and then, as their owner would, those
// abroad.
func (w *World) noVolumes(ctx context.Context, t *testing.T) {
	t.Helper()
	var claims corev1.PersistentVolumeClaimList
	if err := w.Home.Client.List(ctx, &claims, ctrlclient.InNamespace(shop)); err != nil {
		t.Error(err)
	}
	for i := range claims.Items {
		// One whose move failed would stay for ever.
		if claim := &claims.Items[i]; slices.Contains(claim.Finalizers, v1alpha1.FinalizerMove) {
			claim.Finalizers = nil
			if err := w.Home.Client.Update(ctx, claim); err != nil {
				t.Error(err)
			}
		}
	}
	for _, args := range [][]string{
		{"delete", "statefulset,pod", "-n", shop, "--all", "--wait=true"}, {"delete", "pvc", "-n", shop, "--all", "--wait=true"}, {"delete", "pv", "--all", "--wait=true"},
	} {
		if _, err := w.Home.Kubectl(ctx, args...); err != nil {
			t.Error(err)
		}
	}
	// The provisioner, which takes volumes of claims that are gone, may end before it comes to that.
	for _, args := range [][]string{
		{"delete", "pvc", "-A", "-l", v1alpha1.LabelManaged + "=" + v1alpha1.Manager, "--wait=true"}, {"delete", "pv", "--all", "--wait=true"},
	} {
		if _, err := w.Abroad.Kubectl(ctx, args...); err != nil {
			t.Error(err)
		}
	}
}

// claims returns how many claims there are in a namespace.
func (s *Side) claims(ctx context.Context, namespace string) (int, error) {
	var list corev1.PersistentVolumeClaimList
	if err := s.Client.List(ctx, &list, ctrlclient.InNamespace(namespace)); err != nil {
		return 0, err
	}
	return len(list.Items), nil
}
