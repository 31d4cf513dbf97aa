export async function addition(left: number, right: number): Promise<number> {
  'use workflow';
  return add(left, right);
}

/** Not of the suite: the fan-out that the speed is measured with. */
export async function fanOut(width: number): Promise<number> {
  'use workflow';
  const sums = await Promise.all(Array.from({ length: width }, (_, index) => add(index, 1)));
  return sums.length;
}

async function add(left: number, right: number): Promise<number> {
  'use step';
  return left + right;
}
