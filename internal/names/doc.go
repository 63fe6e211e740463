// Package names answers the DNS queries of pods that run here for other clusters
// with the names of the cluster that they are from.
//
// A Book has the Services, endpoints and pods of all consumers. Who asks is told by
// the source address of the query: the pod of one consumer is answered with the
// names of that consumer's home, whatever their namespaces are called here, and with
// nothing of another consumer. Book.Answer decides about one question, without
// input or output. A Server reads queries, has them answered, and forwards those
// for other names to the resolvers of the node.
//
// Where the Book's content comes from is the business of others.
package names
