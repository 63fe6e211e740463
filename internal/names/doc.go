// Package names answers the DNS queries of pods that run here for other clusters
// with the names of the cluster that they are from.
//
// A Book has the Services, endpoints and pods of all consumers. The source address of a query
// identifies the consumer: its pods resolve the names of its home, whatever their namespaces are
// called here, and none of another consumer. Book.Answer decides about one question, without input
// or output. A Server reads queries, answers them from the Book, and forwards those for other names
// to the resolvers of the node.
//
// Other packages fill the Book.
package names
