// The published suite needs Promise.withResolvers, which Node has since version 22.
Promise.withResolvers ??= function withResolvers() {
  let resolve;
  let reject;
  const promise = new this((...functions) => {
    [resolve, reject] = functions;
  });
  return { promise, resolve, reject };
};
