package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/integration/bare"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/lab"
)

const (
	systemNamespace = bare.Namespace
	fakeNodes       = 3
)

// cluster is one control plane with the chart's objects, as its administrator
// sees it, and its agent.
type cluster struct {
	// pair is the two clusters of which it is one; none for a third.
	pair   *pair
	config *rest.Config
	client ctrlclient.WithWatch
	kube   *kubernetes.Clientset
	*process
}

// schemeOfAll has Kubernetes' kinds and ours.
func schemeOfAll() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		panic(err) // the kinds are fixed
	}
	return s
}

func newCluster(name string, c *lab.Cluster, dir, binary string) (*cluster, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	out := &cluster{config: c.RESTConfig()}
	out.config.WarningHandler = rest.NoWarnings{}
	var err error
	if out.client, err = ctrlclient.NewWithWatch(out.config, ctrlclient.Options{Scheme: schemeOfAll()}); err != nil {
		return nil, err
	}
	if out.kube, err = kubernetes.NewForConfig(out.config); err != nil {
		return nil, err
	}
	out.process, err = newProcess(name, dir, binary)
	return out, err
}

// install applies the chart, but for what needs nodes to run, and gives the agent
// a kubeconfig.
func (c *cluster) install(ctx context.Context, root string) error {
	return bare.Install(ctx, c.config, root, c.kubeconfig)
}

// user makes a ServiceAccount with a ClusterRole, or with none, and returns its
// token.
func (c *cluster) user(ctx context.Context, name, role string) (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	if err := ctrlclient.IgnoreAlreadyExists(c.client.Create(ctx, account)); err != nil {
		return "", err
	}
	if role != "" {
		err := c.client.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: name}},
		})
		if ctrlclient.IgnoreAlreadyExists(err) != nil {
			return "", err
		}
	}
	token, err := bare.Token(ctx, c.kube, account.Namespace, name)
	world.secrets.Text("the bearer token of "+name+" at "+c.name, token)
	return token, err
}

// admin speaks to the cluster's agent: with a bearer token, or as the cluster's
// administrator with its certificate. Close it.
func (c *cluster) admin(ctx context.Context, bearer string) (*client.Admin, error) {
	config := rest.CopyConfig(c.config)
	if bearer != "" {
		config = rest.AnonymousClientConfig(config)
		config.BearerToken = bearer
	}
	cm, err := c.kube.CoreV1().ConfigMaps(systemNamespace).Get(ctx, client.CAConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return client.DialAdmin(ctx, client.AdminConfig{REST: config, Address: c.adminAddress, CA: []byte(cm.Data[client.CAKey])})
}

// start starts the agent, unless it runs, and waits until it serves.
func (c *cluster) start(ctx context.Context) error {
	if c.running() {
		return nil
	}
	if err := c.spawn(); err != nil {
		return err
	}
	return eventually.Is(ctx, time.Minute, "the agent of "+c.name+" to serve", func(ctx context.Context) error {
		if !c.running() {
			return eventually.Permanent(fmt.Errorf("it ended: %s", c.lastWords(5)))
		}
		return c.ready(ctx)
	})
}

// restart kills the agent and starts it again.
func (c *cluster) restart(ctx context.Context) error {
	c.kill()
	return c.start(ctx)
}

// get reads an object by name; the namespace is that of the object.
func (c *cluster) get(ctx context.Context, name string, o ctrlclient.Object) error {
	return c.client.Get(ctx, ctrlclient.ObjectKey{Namespace: o.GetNamespace(), Name: name}, o)
}

// list lists what matches.
func list[T any, L interface {
	*T
	ctrlclient.ObjectList
}](ctx context.Context, c *cluster, opts ...ctrlclient.ListOption) (T, error) {
	var out T
	err := c.client.List(ctx, L(&out), opts...)
	return out, err
}

// sorted returns the keys of a map, sorted.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
