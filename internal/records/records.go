// Package records watches and writes OffloadedPods, the records of pods, at less cost than other clients do: they are
// JSON, of which client-go reads each text about ten times, and it reads the answers to writes that nobody needs.
package records

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion/queryparams"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

const (
	resource = "offloadedpods"
	status   = "status"
)

// Client is a client of a cluster that watches OffloadedPods and writes their statuses by itself. An OffloadedPod
// whose status was written stays as it is: it does not get the new version.
type Client struct {
	client.WithWatch
	rest rest.Interface
}

// New returns a client that does all else by c. cfg is c's own.
func New(c client.WithWatch, cfg *rest.Config) (Client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.APIPath = "/apis"
	cfg.ContentConfig = rest.ContentConfig{
		GroupVersion: &api.GroupVersion, NegotiatedSerializer: serializer.NewCodecFactory(c.Scheme()).WithoutConversion(),
	}
	r, err := rest.RESTClientFor(cfg)
	if err != nil {
		return Client{}, fmt.Errorf("make a client of OffloadedPods: %w", err)
	}
	return Client{WithWatch: c, rest: r}, nil
}

// Watch implements client.WithWatch.
func (c Client) Watch(ctx context.Context, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	if _, ok := list.(*api.OffloadedPodList); !ok {
		return c.WithWatch.Watch(ctx, list, opts...) //nolint:wrapcheck // it is the client
	}
	o := (&client.ListOptions{}).ApplyOptions(opts)
	asked := *o.AsListOptions()
	asked.Watch = true
	params, err := queryparams.Convert(&asked)
	if err != nil {
		return nil, fmt.Errorf("encode options of a watch: %w", err)
	}
	request := c.rest.Get().NamespaceIfScoped(o.Namespace, o.Namespace != "").Resource(resource)
	for name, values := range params {
		for _, value := range values {
			request.Param(name, value)
		}
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // it is the client
	}
	return watch.NewStreamWatcher(events{body, json.NewDecoder(body)}, apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")), nil
}

// events reads the events of a watch. It implements watch.Decoder.
type events struct {
	body io.Closer
	json *json.Decoder
}

func (e events) Close() { _ = e.body.Close() }

func (e events) Decode() (watch.EventType, runtime.Object, error) {
	var event struct {
		Type   watch.EventType
		Object json.RawMessage
	}
	if err := e.json.Decode(&event); err != nil {
		return "", nil, err //nolint:wrapcheck // it says whether the stream ended
	}
	var o runtime.Object = &api.OffloadedPod{}
	if event.Type == watch.Error {
		o = &metav1.Status{}
	}
	if err := json.Unmarshal(event.Object, o); err != nil {
		return "", nil, fmt.Errorf("decode an event of a watch: %w", err)
	}
	return event.Type, o, nil
}

// Status implements client.StatusClient.
func (c Client) Status() client.SubResourceWriter { return c.SubResource(status) }

// SubResource implements client.SubResourceClientConstructor.
func (c Client) SubResource(name string) client.SubResourceClient {
	return part{SubResourceClient: c.WithWatch.SubResource(name), rest: c.rest, name: name}
}

// part is a subresource.
type part struct {
	client.SubResourceClient
	rest rest.Interface
	name string
}

// Update implements client.SubResourceWriter. Of an OffloadedPod it sends the status alone, and reads no answer.
func (p part) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	record, ok := o.(*api.OffloadedPod)
	with := (&client.SubResourceUpdateOptions{}).ApplyOptions(opts)
	if !ok || p.name != status || len(with.DryRun) > 0 || with.SubResourceBody != nil || with.FieldValidation != "" {
		return p.SubResourceClient.Update(ctx, o, opts...) //nolint:wrapcheck // it is the client
	}
	body, err := json.Marshal(&api.OffloadedPod{
		TypeMeta:   metav1.TypeMeta{APIVersion: api.GroupVersion.String(), Kind: "OffloadedPod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: record.Namespace, Name: record.Name, UID: record.UID, ResourceVersion: record.ResourceVersion},
		Status:     record.Status,
	})
	if err != nil {
		return fmt.Errorf("encode a status: %w", err)
	}
	return p.rest.Put().Namespace(record.Namespace).Resource(resource).Name(record.Name).SubResource(p.name).
		Param("fieldManager", with.FieldManager).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Error() //nolint:wrapcheck // it is the client
}
