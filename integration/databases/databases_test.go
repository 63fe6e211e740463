// Package databases runs databases whose members are in two clusters.
package databases

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	. "github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/images"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

const (
	namespace    = "data"
	image        = "lab.entente.dev/databases:v1"
	storageClass = "disk"
	// user is whom Debian's packages would have made for PostgreSQL.
	user = 999
)

var theStage = &Installed{Patience: 20 * time.Minute, Config: Config{Lab: "databases", Values: []string{"storage.homeClass=" + storageClass, "storage.reclaimPolicy=Delete"}}}

func TestMain(m *testing.M) { os.Exit(theStage.Main(m)) }

// stage returns two clusters of which both have storage, home's contract has some of abroad's, and
// a namespace is offloaded in which each pod says where it runs.
func stage(t *testing.T) (context.Context, *World) {
	t.Helper()
	only.Matrix(t, "PostgreSQL is downloaded first")
	ctx, w := theStage.On(t)
	loadImage(ctx, t, w)
	for _, s := range w.Sides() {
		Provisions(ctx, t, s, storageClass, corev1.PersistentVolumeReclaimDelete)
	}
	OfferStorage(ctx, t, w.Abroad, storageClass, "20Gi")
	_, err := w.Peer(ctx)
	OK(t, err)
	Offloaded(ctx, t, w, namespace, "--strategy", "LocalAndRemote")
	return ctx, w
}

// loadImage gives all nodes an image with PostgreSQL of Debian and the lab's etcd.
func loadImage(ctx context.Context, t *testing.T, w *World) {
	t.Helper()
	root, err := images.Debian(ctx, t.TempDir(), "bash", "busybox-static", "curl", "postgresql-15")
	OK(t, err)
	base := images.NewLayer()
	base.Tree(root, func(path string) bool {
		// What compiles queries is a quarter of a gigabyte, and nothing here is that slow.
		jit, _ := filepath.Match("usr/lib/*/libLLVM*", path)
		return jit || path == "usr/lib/postgresql/15/lib/bitcode" || images.Needless(path)
	})
	base.Applets(ctx, root)
	base.File("etc/passwd", 0o644, fmt.Appendf(nil, "root:x:0:0:root:/root:/bin/sh\npostgres:x:%d:%d::/data:/bin/sh\n", user, user))
	base.Dir("tmp", 0o1777)
	etcd, err := lab.BinaryPath(ctx, "etcd", w.Waiting)
	OK(t, err)
	more := images.NewLayer()
	more.Copy("usr/local/bin/etcd", 0o755, etcd)
	file := filepath.Join(t.TempDir(), "databases.tar")
	OK(t, images.Save(file, images.Image{
		Names: []string{image}, Layers: []*images.Layer{base, more}, Env: []string{"LANG=C", "POSTGRES=/usr/lib/postgresql/15/bin"},
	}))
	_, err = w.Lab.Load(ctx, file)
	OK(t, err)
}

// member is a StatefulSet with storage, in one of the clusters, and the Service by which others reach it.
func member(name string, replicas int32, strategy, script string, env []corev1.EnvVar, ready []string, ports ...int32) []ctrlclient.Object {
	labels := map[string]string{"app": name}
	class := "entente"
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}
	mounts := []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	container := corev1.Container{
		Name: "db", Image: image, Command: []string{"bash", "-c", script}, Env: env, VolumeMounts: mounts,
		SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(user)), RunAsGroup: new(int64(user))},
		ReadinessProbe:  &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 5, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: ready}}},
	}
	service := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: labels, PublishNotReadyAddresses: true}}
	for _, p := range ports {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", p), Port: p, TargetPort: intstr.FromInt32(p)})
	}
	set := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
		ServiceName: name, Replicas: &replicas, PodManagementPolicy: appsv1.ParallelPodManagement,
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{v1alpha1.AnnotationPodStrategy: strategy}},
			Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: new(int64(5)),
				// A directory of a node belongs to root.
				InitContainers: []corev1.Container{{
					Name: "own", Image: image, Command: []string{"chown", fmt.Sprintf("%d:%d", user, user), "/data"}, VolumeMounts: mounts,
					SecurityContext: &corev1.SecurityContext{RunAsUser: new(int64(0))},
				}},
				Containers: []corev1.Container{container},
			},
		},
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "data"},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
		}},
	}}
	return []ctrlclient.Object{service, set}
}

// env is a variable with a value.
func env(name, value string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: value} }

// runs waits for the pods of a member, and sees to it that they are where they should be.
func runs(ctx context.Context, t *testing.T, w *World, name string, n int, abroad bool) []corev1.Pod {
	t.Helper()
	pods, err := w.Home.PodsReady(ctx, Scheduled, namespace, map[string]string{"app": name}, n)
	OK(t, err)
	if _, away := Split(pods); len(away) != map[bool]int{true: n}[abroad] {
		t.Fatalf("%d of %d pods of %s are abroad", len(away), n, name)
	}
	return pods
}
